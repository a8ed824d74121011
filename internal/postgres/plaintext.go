package postgres

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"strings"

	"github.com/jackc/pgx/v5"
)

// WarnPlainText logs a warning if connections to the variable's URL may leave this machine without
// TLS. That is so with sslmode disable, allow and prefer, which is the default: a server, or an
// attacker in its place, need only refuse TLS.
func WarnPlainText(ctx context.Context, log *slog.Logger, variable, url string) {
	cfg, err := pgx.ParseConfig(url)
	if err != nil { // opening it reports that
		return
	}

	// Fallbacks are what the driver tries next: other hosts, and with sslmode=prefer plain text.
	plain := func(host string, tls *tls.Config) bool { return tls == nil && !local(host) }

	host, warn := cfg.Host, plain(cfg.Host, cfg.TLSConfig)
	for _, next := range cfg.Fallbacks {
		if !warn {
			host, warn = next.Host, plain(next.Host, next.TLSConfig)
		}
	}

	if warn {
		log.WarnContext(ctx, "the database's address allows plain text; set sslmode=verify-full",
			"variable", variable, "host", host)
	}
}

// local reports whether a connection stays on this machine.
func local(host string) bool {
	ip := net.ParseIP(host)
	socket := strings.HasPrefix(host, "/") || strings.HasPrefix(host, "@")
	return socket || host == "localhost" || ip != nil && ip.IsLoopback()
}
