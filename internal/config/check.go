package config

import (
	"encoding/base64"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
)

// checks has the values of the tag check: each returns what is wrong with a value, or nothing. It
// must not repeat any part of the value.
var checks = map[string]func(raw string) (problem string){
	"":               func(string) string { return "" },
	"postgres":       checkPostgres,
	"url":            checkURL,
	"listen":         checkListen,
	"brokers":        checkBrokers,
	"relay":          nameOf(30),  // the end of a topic's name
	"topic":          nameOf(200), // a topic's name has 249 characters at most, the prefix included
	"webhook-secret": checkWebhookSecret,
	"prefixes":       checkPrefixes,
	"certificates": func(file string) string {
		if _, err := certificates(file); err != nil {
			return "must be a readable file of certificates in PEM"
		}
		return ""
	},
	"secret": func(file string) string {
		if _, err := secret(file); err != nil {
			return "must be a readable file that is not empty"
		}
		return ""
	},
}

// checkText returns what is wrong with a text value.
func (v variable) checkText(raw string) (problem string) {
	if len(v.oneof) > 0 && !slices.Contains(v.oneof, raw) {
		return "must be " + strings.Join(v.oneof, " or ")
	}
	return checks[v.check](raw) // a test loads every variable, so each check exists
}

// checkList returns what is wrong with a list, whose items are separated by commas.
func (v variable) checkList(raw string, items []string) (problem string) {
	if len(v.oneof) == 0 {
		return checks[v.check](raw)
	}

	for _, item := range items {
		if !slices.Contains(v.oneof, item) {
			return "must be a list of " + strings.Join(v.oneof, ", ") + ", separated by commas"
		}
	}
	return ""
}

func nameOf(limit int) func(string) string {
	pattern := regexp.MustCompile(fmt.Sprintf(`^[A-Za-z0-9._-]{1,%d}$`, limit))

	return func(raw string) string {
		if pattern.MatchString(raw) {
			return ""
		}
		return fmt.Sprintf("must be up to %d letters, digits, dots, hyphens and underscores", limit)
	}
}

func checkListen(raw string) string {
	if _, port, err := net.SplitHostPort(raw); err != nil || !isPort(port, 0) {
		return "must be an address to listen on, [host]:port"
	}
	return ""
}

func checkURL(raw string) string {
	const problem = "must be a URL that begins with http:// or https://, without a user or a query"

	// A user's password would be sent to the log with the URL.
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

// checkWebhookSecret checks the rule of Standard Webhooks: whsec_ and 24 to 64 bytes in base64.
func checkWebhookSecret(raw string) string {
	const prefix = "whsec_"

	key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(raw, prefix))
	if !strings.HasPrefix(raw, prefix) || err != nil || len(key) < 24 || len(key) > 64 {
		return "must be whsec_ followed by 24 to 64 bytes in base64"
	}
	return ""
}

func checkPrefixes(raw string) string {
	for i, prefix := range strings.Split(raw, ",") {
		if p, err := netip.ParsePrefix(strings.TrimSpace(prefix)); err != nil || p != p.Masked() {
			return "must be prefixes such as 10.1.0.0/16 separated by commas, without bits beyond their length; " +
				"number " + strconv.Itoa(i+1) + " is not"
		}
	}
	return ""
}

func isPort(s string, lowest int) bool {
	n, err := strconv.Atoi(s)
	return err == nil && n >= lowest && n <= 65535
}
