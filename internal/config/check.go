package config

import (
	"net"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
)

// checkText returns what is wrong with a value that is text. It must not repeat any of it.
func (v variable) checkText(raw string) (problem string) {
	if len(v.oneof) > 0 && !slices.Contains(v.oneof, raw) {
		return "must be " + strings.Join(v.oneof, " or ")
	}
	switch v.check {
	case "":
		return ""
	case "postgres":
		return checkPostgres(raw)
	case "listen":
		if _, port, err := net.SplitHostPort(raw); err != nil || !isPort(port, 0) {
			return "must be an address to listen on, [host]:port"
		}
		return ""
	case "brokers":
		return checkBrokers(raw)
	case "url":
		if u, err := url.Parse(raw); err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil || u.RawQuery != "" {
			return "must be a URL that begins with http:// or https://, without a user or a query"
		}
		return ""
	case "certificates":
		if _, err := certificates(raw); err != nil {
			return "must be a file that can be read and has certificates in PEM"
		}
		return ""
	case "secret":
		if _, err := secret(raw); err != nil {
			return "must be a file that can be read and is not empty"
		}
		return ""
	case "relay":
		if !relayName.MatchString(raw) {
			return "must be up to 30 letters, digits, dots, hyphens and underscores"
		}
		return ""
	case "topic":
		if !topicPrefix.MatchString(raw) {
			return "must be what Kafka allows in a topic's name: up to 200 letters, digits, dots, hyphens and underscores"
		}
		return ""
	}
	panic("config: no check " + v.check)
}

// A topic's name has at most 249 characters, and what follows the prefix needs some.
var topicPrefix = regexp.MustCompile(`^[A-Za-z0-9._-]{1,200}$`)

// A relay's name is at the end of a topic's.
var relayName = regexp.MustCompile(`^[A-Za-z0-9._-]{1,30}$`)

// checkPostgres lets the driver decide, since it reads more than net/url does (several hosts, sockets). Its error text
// is not shown: it hides passwords on a best-effort basis only, and one with an unescaped @ or / looks like a port.
func checkPostgres(raw string) string {
	if !strings.HasPrefix(raw, "postgres://") && !strings.HasPrefix(raw, "postgresql://") {
		return "must be a URL that begins with postgres://"
	}
	cfg, err := pgx.ParseConfig(raw)
	if err != nil {
		return "is a URL that Postgres drivers cannot use (look at port, sslmode, certificate files, and % @ / in the password, which must be percent-encoded)"
	}
	switch cfg.DefaultQueryExecMode {
	case pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe:
		return ""
	}
	// The simple protocol puts values into the statement's text (GHSA-j88v-2chj-qfwx); the others were never tried.
	return "must have no other default_query_exec_mode than cache_statement or cache_describe"
}

func checkBrokers(raw string) string {
	for i, broker := range strings.Split(raw, ",") {
		host, port, err := net.SplitHostPort(strings.TrimSpace(broker))
		if err != nil || host == "" || !isPort(port, 1) {
			return "must be host:port separated by commas, without a scheme; number " + strconv.Itoa(i+1) + " is not"
		}
	}
	return ""
}

func isPort(s string, lowest int) bool {
	n, err := strconv.Atoi(s)
	return err == nil && n >= lowest && n <= 65535
}
