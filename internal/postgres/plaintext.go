package postgres

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"strings"

	"github.com/jackc/pgx/v5"
)

// WarnPlainText warns when connections to the URL in a variable may be without TLS and leave this machine. That is so with
// sslmode disable, allow and prefer, which is the default: a server, or who answers in its place, need only refuse TLS.
func WarnPlainText(ctx context.Context, log *slog.Logger, variable, url string) {
	cfg, err := pgx.ParseConfig(url)
	if err != nil { // opening it says so
		return
	}
	plain := func(host string, tls *tls.Config) bool { return tls == nil && !local(host) }
	host, warn := cfg.Host, plain(cfg.Host, cfg.TLSConfig)
	for _, next := range cfg.Fallbacks {
		if !warn {
			host, warn = next.Host, plain(next.Host, next.TLSConfig)
		}
	}
	if warn {
		log.WarnContext(ctx, "the database's address allows plain text; set sslmode=verify-full", "variable", variable, "host", host)
	}
}

// local reports whether a connection stays on this machine.
func local(host string) bool {
	ip := net.ParseIP(host)
	return strings.HasPrefix(host, "/") || strings.HasPrefix(host, "@") || host == "localhost" || ip != nil && ip.IsLoopback()
}
