// Package pgproxy is a proxy in front of Postgres that decides the fate of each COMMIT. For tests and
// the demo.
package pgproxy

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
)

// Fate is what happens to a COMMIT.
type Fate int

// All fates but the first end the connection.
const (
	Pass        Fate = iota // executed and answered
	LoseReply               // executed, but the connection breaks before the client gets the reply
	LoseRequest             // the connection breaks before the server gets it
	Cut                     // the connection breaks while it is on its way to the server
	Stall                   // never arrives; the server sees the connection end at Release
)

// Proxy is a running proxy.
type Proxy struct {
	fate     func(conn, commit int) Fate
	seen     func(conn int, message []byte)
	server   *pgconn.Config
	listener net.Listener
	conns    atomic.Int64
	release  func()
	released chan struct{} // closed by release

	mu   sync.Mutex
	down bool
	open map[net.Conn]bool // both ends of all connections
	all  sync.WaitGroup
}

// Start starts a proxy in front of the server of a URL, until the test ends. It calls fate for every
// COMMIT, from many goroutines: conn counts connections, commit the COMMITs of each, both from 1.
func Start(t testing.TB, server string, fate func(conn, commit int) Fate) *Proxy {
	t.Helper()
	p, err := Listen(server, fate, nil)
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(p.Close)
	return p
}

// Listen is Start without a test; the caller calls Close. It shows seen, if that is not nil, what else
// the client of a connection sends. The message is seen's until it returns.
func Listen(
	server string, fate func(conn, commit int) Fate, seen func(conn int, message []byte),
) (*Proxy, error) {
	cfg, err := pgconn.ParseConfig(server)
	if err != nil {
		return nil, fmt.Errorf("start a proxy: %w", err)
	}

	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("start a proxy: %w", err)
	}

	if seen == nil {
		seen = func(int, []byte) {}
	}
	p := &Proxy{
		fate: fate, seen: seen, server: cfg, listener: l,
		open: map[net.Conn]bool{}, released: make(chan struct{}),
	}
	p.release = sync.OnceFunc(func() { close(p.released) })
	p.all.Go(p.accept)
	return p, nil
}

// Close ends all connections.
func (p *Proxy) Close() {
	_ = p.listener.Close() // end accept
	p.SetDown(true)
	p.Release()
	p.all.Wait()
}

// Through makes a client's configuration lead through the proxy, without TLS.
func (p *Proxy) Through(c *pgconn.Config) {
	address := p.listener.Addr().(*net.TCPAddr)
	c.Host, c.Port, c.TLSConfig, c.Fallbacks = address.IP.String(), uint16(address.Port), nil, nil
}

// URL makes a URL lead through the proxy.
func (p *Proxy) URL(server string) string {
	u, err := url.Parse(server)
	if err != nil {
		panic(err)
	}

	u.Host = p.listener.Addr().String()
	return u.String()
}

// SetDown with true breaks all connections and refuses new ones, as if the server were down. With
// false the server is back.
func (p *Proxy) SetDown(down bool) {
	p.mu.Lock()
	defer p.mu.Unlock()

	p.down = down
	for c := range p.open {
		if down {
			_ = c.Close() // serve may have closed it
		}
	}
}

// Release closes the server's end of connections whose COMMIT has stalled or stalls later. Until
// then their backends keep their transactions open, as behind a network that is cut.
func (p *Proxy) Release() { p.release() }

func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}

		n := int(p.conns.Add(1))
		p.all.Go(func() { p.serve(client, n) })
	}
}

func (p *Proxy) serve(client net.Conn, n int) {
	defer p.close(client)

	network, address := pgconn.NetworkAddress(p.server.Host, p.server.Port)
	server, err := net.Dial(network, address)
	if err != nil {
		return
	}
	defer p.close(server)

	if !p.keep(client, server) {
		return
	}

	var silent atomic.Bool // the client must not get another answer
	p.all.Go(func() {
		defer p.close(client)
		defer p.close(server)
		answers(client, bufio.NewReader(server), &silent)
	})

	fate := func(commit int) Fate { return p.fate(n, commit) }
	seen := func(message []byte) { p.seen(n, message) }
	requests(client, server, fate, seen, &silent, p.released)
}

// keep adds connections for SetDown to break, and reports whether the server is up.
func (p *Proxy) keep(conns ...net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()

	for _, c := range conns {
		p.open[c] = true
	}
	return !p.down
}

func (p *Proxy) close(c net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()

	delete(p.open, c)
	_ = c.Close() // SetDown may have closed it
}

// A message begins with its type, one byte, and its length, four. The first one of a client has no
// type.
const (
	startLength  = 4
	length       = 5
	noEncryption = 'N'
)

// requests passes on what the client sends, and lets each COMMIT meet its fate.
func requests(
	client, server net.Conn, fate func(commit int) Fate, seen func([]byte), silent *atomic.Bool,
	released <-chan struct{},
) {
	r, w := bufio.NewReader(client), bufio.NewWriter(server)

	// Before it starts, a client may ask for encryption, in a message of eight bytes.
	m, err := read(r, startLength)
	for ; err == nil && len(m) == 8; m, err = read(r, startLength) {
		if _, err := client.Write([]byte{noEncryption}); err != nil {
			return
		}
	}

	for commits := 0; err == nil; m, err = read(r, length) {
		become := Pass
		if strings.EqualFold(string(m[min(length, len(m)):]), "commit\x00") && m[0] == 'Q' {
			// What was sent before it has arrived, whatever its fate.
			if err := w.Flush(); err != nil {
				return
			}
			commits++
			become = fate(commits)
		} else {
			seen(m)
		}

		switch become {
		case LoseRequest:
			return
		case Stall:
			_, _ = read(r, length) // until the client gives up
			<-released
			return
		case LoseReply, Cut:
			silent.Store(true)
		}

		if pass(w, r, m) != nil {
			return
		}
		if become == Cut {
			_ = w.Flush() // the connection ends either way
			return
		}
	}
}

// pass writes a message, and sends it off unless more can be read at once.
func pass(w *bufio.Writer, r *bufio.Reader, m []byte) error {
	if _, err := w.Write(m); err != nil || r.Buffered() > 0 {
		return err
	}
	return w.Flush()
}

// answers passes on what the server sends, until the reply to be lost has come.
func answers(client net.Conn, server *bufio.Reader, silent *atomic.Bool) {
	w := bufio.NewWriter(client)
	for {
		m, err := read(server, length)

		switch lost := silent.Load(); {
		case err != nil || lost && m[0] == 'Z': // ready for the next query: it has committed
			_ = w.Flush() // the answers before it
			return
		case !lost:
			if err := pass(w, server, m); err != nil {
				return
			}
		}
	}
}

// read reads a message. Its length, which counts its own four bytes, ends the header.
func read(r *bufio.Reader, header int) ([]byte, error) {
	head, err := r.Peek(header)
	if err != nil {
		return nil, err
	}

	m := make([]byte, header-4+int(binary.BigEndian.Uint32(head[header-4:])))
	_, err = io.ReadFull(r, m)
	return m, err
}

// String returns the fate's name, for the names of tests.
func (f Fate) String() string {
	switch f {
	case Pass:
		return "nothing is lost"
	case LoseReply:
		return "the reply is lost"
	case LoseRequest:
		return "the request is lost"
	case Cut:
		return "the connection is cut"
	case Stall:
		return "the request stalls"
	}
	return fmt.Sprintf("fate %d", int(f))
}
