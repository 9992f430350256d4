package gateways

import (
	"context"
	"io"
	"net"
	"strconv"
	"sync"
	"testing"
	"time"
)

// clusterService connects callers of a Service's cluster IP with its ready pods, as kube-proxy does: it chooses a pod for each
// connection, and a connection stays with its pod. Its methods are safe for concurrent use.
type clusterService struct {
	mu    sync.Mutex
	ready []string // addresses of pods; guarded by mu
	next  int      // guarded by mu
}

// serve takes the place of kube-proxy and the name server for a Service of the API server, until the test ends. Ports of pods are those
// of the Service.
func (k *kubernetes) serve(t *testing.T, ns, name string) (*clusterService, error) {
	var o struct {
		Spec struct {
			ClusterIP string `yaml:"clusterIP"`
			Ports     []struct{ Port int }
		}
	}
	if err := k.get(t.Context(), "/api/v1/namespaces/"+ns+"/services/"+name, &o); err != nil {
		return nil, err
	}
	address := o.Spec.ClusterIP + "/32 dev br0"
	if err := commands("ip addr add " + address); err != nil {
		return nil, err
	}
	t.Cleanup(func() { _ = commands("ip addr del " + address) })
	s := &clusterService{}
	for _, p := range o.Spec.Ports {
		port := strconv.Itoa(p.Port)
		ln, err := net.Listen("tcp", net.JoinHostPort(o.Spec.ClusterIP, port))
		if err != nil {
			return nil, err
		}
		t.Cleanup(func() { ln.Close() })
		go s.accept(ln, port)
	}
	names.setIn(ns, name, o.Spec.ClusterIP)
	return s, nil
}

// set sets the addresses of the ready pods.
func (s *clusterService) set(ready ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ready = ready
}

// choose returns the pod of the next connection, or an empty string.
func (s *clusterService) choose() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.ready) == 0 {
		return ""
	}
	s.next++
	return s.ready[s.next%len(s.ready)]
}

func (s *clusterService) accept(ln net.Listener, port string) {
	for {
		c, err := ln.Accept()
		if err != nil {
			return
		}
		go s.connect(c.(*net.TCPConn), port)
	}
}

// connect copies between a caller and a pod until both have closed. Without a pod it closes the connection.
func (s *clusterService) connect(caller *net.TCPConn, port string) {
	defer caller.Close()
	ip := s.choose()
	if ip == "" {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	c, err := (&net.Dialer{}).DialContext(ctx, "tcp", net.JoinHostPort(ip, port))
	if err != nil {
		return
	}
	defer c.Close()
	backend := c.(*net.TCPConn)
	var wait sync.WaitGroup
	for to, from := range map[*net.TCPConn]*net.TCPConn{caller: backend, backend: caller} {
		wait.Go(func() {
			_, _ = io.Copy(to, from)
			_ = to.CloseWrite()
		})
	}
	wait.Wait()
}
