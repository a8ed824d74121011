package postgres

import (
	"strings"
	"syscall"
)

const tcpUserTimeout = 0x12 // TCP_USER_TIMEOUT, missing from package syscall

// setTCPUserTimeout bounds how long sent data may stay unacknowledged. Keepalives alone do not:
// they are sent on idle connections only.
func setTCPUserTimeout(network, _ string, c syscall.RawConn) error {
	if !strings.HasPrefix(network, "tcp") {
		return nil
	}

	var setErr error
	err := c.Control(func(fd uintptr) {
		ms := int(peerTimeout.Milliseconds())
		setErr = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_TCP, tcpUserTimeout, ms)
	})
	if err != nil {
		return err
	}
	return setErr
}
