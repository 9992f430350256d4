// Command floor does what no idle sidecar can leave out, and nothing else: with each of n others it keeps two TLS
// connections, one each way, and twice a second each sends the other 40 bytes and receives as many in response, in either
// direction over the connection of the one who speaks; of two, one begins, and the other speaks as it answers. What it costs is
// what Go, TLS and the kernel take for that.
//
// It is started by bench/idle: one process is measured, another plays all of the others.
package main

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"time"
)

const (
	beat     = 500 * time.Millisecond
	size     = 40 // of a message
	answer   = 'a'
	patience = 10 * time.Second // for the others to be there
)

func main() {
	cert := flag.String("cert", "", "certificate `file`")
	key := flag.String("key", "", "key `file`")
	ca := flag.String("ca", "", "certificates of who may speak, a `file`")
	one := flag.String("one", "127.86.0.1:7947", "`address` of the member that is measured")
	n := flag.Int("n", 99, "number of others")
	others := flag.Bool("others", false, "be all of the others")
	flag.Parse()
	if err := run(*cert, *key, *ca, *one, *n, *others); err != nil {
		fmt.Fprintln(os.Stderr, "floor:", err)
		os.Exit(1)
	}
}

func run(cert, key, ca, one string, n int, others bool) error {
	conf, err := config(cert, key, ca)
	if err != nil {
		return err
	}
	failed := make(chan error)
	start := func(id int, at string, peers map[uint16]string) {
		m := &member{id: uint16(id), tls: conf, out: map[uint16]net.Conn{}, ready: make(chan struct{})}
		go func() { failed <- m.run(at, peers) }()
	}
	if others {
		for i := range n {
			start(i, other(i), map[uint16]string{uint16(n): one})
		}
		return <-failed
	}
	peers := map[uint16]string{}
	for i := range n {
		peers[uint16(i)] = other(i)
	}
	start(n, one, peers)
	go rest()
	return <-failed
}

func other(i int) string { return fmt.Sprintf("127.87.%d.%d:7947", i/250, 1+i%250) }

// rest gives memory back as a sidecar at rest does.
func rest() {
	for wait := 10 * time.Second; ; wait = time.Minute {
		time.Sleep(wait)
		debug.SetGCPercent(25)
		debug.FreeOSMemory()
	}
}

func config(cert, key, ca string) (*tls.Config, error) {
	pair, err1 := tls.LoadX509KeyPair(cert, key)
	pem, err2 := os.ReadFile(ca)
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) && err2 == nil {
		err2 = errors.New(ca + ": no certificates")
	}
	return &tls.Config{
		Certificates: []tls.Certificate{pair}, RootCAs: pool, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert,
		ServerName: "localhost", MinVersion: tls.VersionTLS13,
	}, errors.Join(err1, err2)
}

// member speaks to its peers over connections that it dialled, and hears them over those that they dialled.
type member struct {
	id      uint16
	tls     *tls.Config
	out     map[uint16]net.Conn // not changed any more once ready is closed
	ready   chan struct{}
	answers atomic.Int64
}

func (m *member) run(at string, peers map[uint16]string) error {
	ln, err := tls.Listen("tcp", at, m.tls)
	if err != nil {
		return err
	}
	failed := make(chan error, len(peers))
	go func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				failed <- err
				return
			}
			go func() { failed <- m.hear(conn) }()
		}
	}()
	for id, addr := range peers {
		if m.out[id], err = m.dial(addr); err != nil {
			return err
		}
	}
	close(m.ready)
	return m.speak(failed)
}

// dial waits for the peer to be there, and says who this is.
func (m *member) dial(addr string) (net.Conn, error) {
	for end := time.Now().Add(patience); ; time.Sleep(beat / 10) {
		conn, err := tls.Dial("tcp", addr, m.tls)
		if err == nil {
			_, err = conn.Write(binary.BigEndian.AppendUint16(nil, m.id))
			return conn, err
		}
		if time.Now().After(end) {
			return nil, err
		}
	}
}

// speak sends a message to all peers in every beat, give or take a fifth, until no peer responds any more.
func (m *member) speak(failed <-chan error) error {
	message := []byte(strings.Repeat("q", size))
	last, heard := time.Now(), int64(0) // when a peer responded last
	t := time.NewTimer(beat)
	for {
		select {
		case err := <-failed:
			return err
		case <-t.C:
		}
		t.Reset(beat*4/5 + rand.N(beat*2/5))
		for id, conn := range m.out {
			if !begins(m.id, id) {
				continue
			}
			if _, err := conn.Write(message); err != nil {
				return err
			}
		}
		if n := m.answers.Load(); n != heard {
			last, heard = time.Now(), n
		} else if time.Since(last) > patience {
			return errors.New("no peer responds")
		}
	}
}

// begins reports whether a sends first, of a and b. Each member does so with half of the others.
func begins(a, b uint16) bool { return (a < b) == ((a+b)%2 == 0) }

// hear answers what comes over conn.
func (m *member) hear(conn net.Conn) error {
	buf := make([]byte, size, 2*size)
	if _, err := io.ReadFull(conn, buf[:2]); err != nil {
		return err
	}
	<-m.ready
	id := binary.BigEndian.Uint16(buf)
	out, reply := m.out[id], buf
	if out == nil {
		return errors.New("a stranger")
	}
	if begins(id, m.id) {
		reply = append(buf, strings.Repeat("q", size)...)
	}
	for {
		if _, err := io.ReadFull(conn, buf); err != nil {
			return err
		}
		if buf[0] == answer {
			m.answers.Add(1)
			continue
		}
		buf[0] = answer
		if _, err := out.Write(reply); err != nil {
			return err
		}
	}
}
