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

// checkText returns what is wrong with a text value. It must not repeat any part of it.
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
		return checkURL(raw)
	case "certificates":
		if _, err := certificates(raw); err != nil {
			return "must be a readable file of certificates in PEM"
		}
		return ""
	case "secret":
		if _, err := secret(raw); err != nil {
			return "must be a readable file that is not empty"
		}
		return ""
	case "relay":
		if !relayName.MatchString(raw) {
			return "must be up to 30 letters, digits, dots, hyphens and underscores"
		}
		return ""
	case "topic":
		if !topicPrefix.MatchString(raw) {
			return "must be up to 200 letters, digits, dots, hyphens and underscores"
		}
		return ""
	}
	panic("config: no check " + v.check)
}

// A topic's name has at most 249 characters; this leaves room for what follows the prefix.
var topicPrefix = regexp.MustCompile(`^[A-Za-z0-9._-]{1,200}$`)

// A relay's name is the end of a topic's name.
var relayName = regexp.MustCompile(`^[A-Za-z0-9._-]{1,30}$`)

func checkURL(raw string) string {
	const problem = "must be a URL that begins with http:// or https://, without a user or a query"

	u, err := url.Parse(raw)
	if err != nil || u.Host == "" || u.User != nil || u.RawQuery != "" {
		return problem
	}
	if u.Scheme != "http" && u.Scheme != "https" {
		return problem
	}
	return ""
}

// checkPostgres asks the driver, which accepts more than net/url does (several hosts, sockets). It
// does not show the driver's text, which hides passwords on a best-effort basis only: one with an
// unescaped @ or / looks like a port.
func checkPostgres(raw string) string {
	if !strings.HasPrefix(raw, "postgres://") && !strings.HasPrefix(raw, "postgresql://") {
		return "must be a URL that begins with postgres://"
	}

	cfg, err := pgx.ParseConfig(raw)
	if err != nil {
		return "is a URL that the Postgres driver cannot use (check port, sslmode, certificate files, " +
			"and % @ / in the password, which must be percent-encoded)"
	}

	switch cfg.DefaultQueryExecMode {
	case pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe:
		return ""
	}
	// The simple protocol puts values into the statement's text (GHSA-j88v-2chj-qfwx); the others
	// are untested.
	return "must have default_query_exec_mode cache_statement or cache_describe, or none"
}

func checkBrokers(raw string) string {
	for i, broker := range strings.Split(raw, ",") {
		host, port, err := net.SplitHostPort(strings.TrimSpace(broker))
		if err != nil || host == "" || !isPort(port, 1) {
			return "must be host:port separated by commas, without a scheme; " +
				"number " + strconv.Itoa(i+1) + " is not"
		}
	}
	return ""
}

func isPort(s string, lowest int) bool {
	n, err := strconv.Atoi(s)
	return err == nil && n >= lowest && n <= 65535
}
