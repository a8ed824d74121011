package webhooks

import (
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"regexp"
	"strings"
	"syscall"
)

// ErrAddress means that a call would go to an address that is not public and not allowed.
var ErrAddress = errors.New("the address is not allowed")

// notPublic are the prefixes of the IANA special-purpose registries within the ranges of public
// addresses, and one of a cloud.
var notPublic = prefixes(
	"0.0.0.0/8",        // this host
	"10.0.0.0/8",       // private
	"100.64.0.0/10",    // behind a carrier's NAT; metadata at Alibaba and Oracle
	"127.0.0.0/8",      // loopback
	"168.63.129.16/32", // Azure's wire server
	"169.254.0.0/16",   // link-local; metadata
	"172.16.0.0/12",    // private
	"192.0.0.0/24",     // protocol assignments
	"192.0.2.0/24",     // documentation
	"192.88.99.0/24",   // 6to4 relays
	"192.168.0.0/16",   // private
	"198.18.0.0/15",    // benchmarks
	"198.51.100.0/24",  // documentation
	"203.0.113.0/24",   // documentation
	"224.0.0.0/4",      // multicast
	"240.0.0.0/4",      // reserved, broadcast
	"2001::/23",        // Teredo, ORCHID, benchmarks: some carry an IPv4 address
	"2001:db8::/32",    // documentation
	"2002::/16",        // 6to4: carries an IPv4 address
	"3fff::/20",        // documentation
)

// globalIPv6 has all public IPv6 addresses. Beyond it are loopback, link-local, unique local,
// multicast and those of NAT64.
var globalIPv6 = netip.MustParsePrefix("2000::/3")

func prefixes(texts ...string) (all []netip.Prefix) {
	for _, text := range texts {
		all = append(all, netip.MustParsePrefix(text))
	}
	return all
}

// isPublic reports whether calls may go to an address without being allowed.
func isPublic(a netip.Addr) bool {
	a = a.Unmap() // ::ffff:127.0.0.1 is 127.0.0.1
	return a.IsValid() && a.Zone() == "" && (a.Is4() || globalIPv6.Contains(a)) && !within(notPublic, a)
}

func within(prefixes []netip.Prefix, a netip.Addr) bool {
	a = a.Unmap().WithZone("")
	for _, p := range prefixes {
		if p.Contains(a) {
			return true
		}
	}
	return false
}

// control returns the Control of a dialer. It is called for each address that a name was resolved to,
// when the connection is made: no later look-up can come between. Without public, only what is
// allowed will do.
func control(allow []netip.Prefix, public bool) func(network, address string, c syscall.RawConn) error {
	return func(network, address string, _ syscall.RawConn) error {
		to, err := netip.ParseAddrPort(address)
		switch {
		case err != nil, !strings.HasPrefix(network, "tcp"):
			return ErrAddress
		case within(allow, to.Addr()), public && isPublic(to.Addr()):
			return nil
		}
		return ErrAddress
	}
}

// hostname matches names as they are written in URLs. The last label begins with a letter: otherwise it
// is an IPv4 address in one of the forms that some resolvers take and some do not (2130706433,
// 0177.0.0.1, 0x7f.1, 127.1).
var hostname = regexp.MustCompile(`^(?i:([a-z0-9_]([a-z0-9_-]*[a-z0-9_])?\.)*[a-z]([a-z0-9-]*[a-z0-9])?\.?)$`)

const maxURL = 2000

// CheckURL returns what is wrong with the URL of an endpoint, as the end of a sentence that begins with
// its name, or nil. It refuses early what the dialer would refuse later, and what no two programs read
// alike. Plain http may only be used where addresses are allowed, and then only to those.
func CheckURL(raw string, allow []netip.Prefix) error {
	u, err := url.Parse(raw)
	switch {
	case err != nil || len(raw) > maxURL || strings.ContainsFunc(raw, notVisible):
		return fmt.Errorf("must be a URL of at most %d visible ASCII characters", maxURL)
	case u.Scheme != "https" && (u.Scheme != "http" || len(allow) == 0):
		return errors.New("must begin with https://")
	case u.User != nil || u.Fragment != "" || strings.HasSuffix(raw, "#"):
		return errors.New("must have no user and no fragment")
	}

	address, err := netip.ParseAddr(u.Hostname())
	switch {
	case err == nil && (isPublic(address) && u.Scheme == "https" || within(allow, address)):
		return nil
	case err == nil:
		return errors.New("must have a public address")
	case !hostname.MatchString(u.Hostname()) || len(u.Hostname()) > 253:
		return errors.New("must have a host name or an IP address in its usual form")
	}
	return nil
}

func notVisible(r rune) bool { return r <= ' ' || r > '~' }
