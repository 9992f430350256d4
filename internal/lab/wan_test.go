package lab

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"testing"
	"time"
)

// TestWAN requires that the proxy delays and passes all bytes, that a cut ends connections and refuses new ones, and that
// it ends when it is healed.
func TestWAN(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				_, _ = io.Copy(c, c)
			}()
		}
	}()
	const oneWay = 20 * time.Millisecond
	w, err := StartWAN(ln.Addr().String(), oneWay)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	echo := func(c net.Conn) error {
		if _, err := fmt.Fprintln(c, "hello"); err != nil {
			return err
		}
		_, err := bufio.NewReader(c).ReadString('\n')
		return err
	}
	dial := func() net.Conn {
		c, err := net.Dial("tcp", w.Addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	c := dial()
	began := time.Now()
	if err := echo(c); err != nil || time.Since(began) < 2*oneWay {
		t.Fatalf("%v after %v", err, time.Since(began))
	}
	w.Cut(true)
	if err := echo(c); err == nil {
		t.Error("a connection survives the cut")
	}
	if err := echo(dial()); err == nil {
		t.Error("a connection through the cut")
	}
	w.Cut(false)
	if err := echo(dial()); err != nil {
		t.Errorf("after the cut: %v", err)
	}
}
