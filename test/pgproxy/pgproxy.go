// Package pgproxy stands between a program and its Postgres and decides what becomes of each COMMIT. For tests only.
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

// Fate is what becomes of a COMMIT.
type Fate int

// The fates. But for the first, they end the connection.
const (
	Pass        Fate = iota // it is done and answered
	LoseReply               // it is done, and then the connection breaks: the client does not hear of it
	LoseRequest             // the connection breaks before it reaches the server
	Cut                     // it is on its way to the server when the connection breaks
	Stall                   // it stays on the way; the server learns that the client gave up when the test calls Release
)

// Proxy is one that listens.
type Proxy struct {
	fate     func(conn, commit int) Fate
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

// Start starts a proxy in front of the server of a URL, until the test ends. fate is asked about every COMMIT: conn counts
// connections, commit counts on each of them, both from 1. It may be called by many at once.
func Start(t testing.TB, server string, fate func(conn, commit int) Fate) *Proxy {
	t.Helper()
	cfg, err := pgconn.ParseConfig(server)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &Proxy{fate: fate, server: cfg, listener: l, open: map[net.Conn]bool{}, released: make(chan struct{})}
	p.release = sync.OnceFunc(func() { close(p.released) })
	p.all.Go(p.accept)
	t.Cleanup(func() {
		_ = l.Close() // nobody is to connect any more, whatever it says
		p.SetDown(true)
		p.Release()
		p.all.Wait()
	})
	return p
}

// Through makes a client's configuration lead through the proxy. Without TLS.
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

// SetDown breaks all connections and takes no new ones, as if the server were away, or ends that.
func (p *Proxy) SetDown(down bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.down = down
	for c := range p.open {
		if down {
			_ = c.Close() // broken is what it should be
		}
	}
}

// Release lets the server see the end of the connections whose COMMIT stalled, and of those that stall later at once. Until then their
// backends keep their transactions open, as behind a network that is cut.
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
	var silent atomic.Bool // the client is to hear no more
	p.all.Go(func() {
		defer p.close(client)
		defer p.close(server)
		answers(client, bufio.NewReader(server), &silent)
	})
	requests(client, server, func(commit int) Fate { return p.fate(n, commit) }, &silent, p.released)
}

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

// The first message of a client has no type, only a length. It may ask for encryption first, in a message that has no more
// than that.
const (
	startLength  = 4
	length       = 5
	noEncryption = 'N'
)

func requests(client, server net.Conn, fate func(commit int) Fate, silent *atomic.Bool, released <-chan struct{}) {
	r := bufio.NewReader(client)
	m, err := read(r, startLength)
	for ; err == nil && len(m) == 8; m, err = read(r, startLength) {
		if _, err := client.Write([]byte{noEncryption}); err != nil {
			return
		}
	}
	for commits := 0; err == nil; m, err = read(r, length) {
		become := Pass
		if strings.EqualFold(string(m[min(length, len(m)):]), "commit\x00") && m[0] == 'Q' {
			commits++
			become = fate(commits)
		}
		switch become {
		case LoseRequest:
			return
		case Stall:
			_, _ = read(r, length) // nothing more comes but the end
			<-released
			return
		case LoseReply, Cut:
			silent.Store(true)
		}
		if _, err := server.Write(m); err != nil || become == Cut {
			return
		}
	}
}

func answers(client net.Conn, server *bufio.Reader, silent *atomic.Bool) {
	for {
		m, err := read(server, length)
		switch lost := silent.Load(); {
		case err != nil || lost && m[0] == 'Z': // ready for the next query: COMMIT is done
			return
		case !lost:
			if _, err := client.Write(m); err != nil {
				return
			}
		}
	}
}

// read reads a message whose length, itself included, stands at the end of so many bytes.
func read(r *bufio.Reader, header int) ([]byte, error) {
	head, err := r.Peek(header)
	if err != nil {
		return nil, err
	}
	m := make([]byte, header-4+int(binary.BigEndian.Uint32(head[header-4:])))
	_, err = io.ReadFull(r, m)
	return m, err
}

// String names the fate in the names of tests.
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
