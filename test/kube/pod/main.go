// Command pod is everything that the pods of the cluster tests run next to Keyward and Envoy: one static program, one small image.
//
//	pod pause                     waits for a signal; the infrastructure container of every pod
//	pod serve [ADDRESS] [LINGER]  answers every request with its pod's name; after SIGTERM it goes on for LINGER
//	pod ask N URL HEADER=VALUE    sends N requests, prints how often which status came, and ends, as a Job does
//	pod get URL                   prints a page; the tests run it in the network namespace of a pod
package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"
)

func main() {
	stop, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer cancel()
	args := append(os.Args[1:], "", "", "", "")
	var err error
	switch args[0] {
	case "", "pause": // the container runtime starts it without arguments
		<-stop.Done()
	case "serve":
		err = serve(stop, args[1], args[2])
	case "ask":
		err = ask(stop, args[1], args[2], args[3])
	case "get":
		err = get(stop, args[1])
	default:
		err = fmt.Errorf("unknown command %q", args[0])
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "pod:", err)
		os.Exit(1)
	}
}

func serve(stop context.Context, address, linger string) error {
	rest, err := time.ParseDuration(linger)
	if err != nil && linger != "" {
		return err
	}
	name, err := os.Hostname()
	if err != nil {
		return err
	}
	s := &http.Server{Addr: address, ReadHeaderTimeout: 10 * time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("x-pod", name)
		fmt.Fprintln(w, "hello")
	})}
	go func() {
		<-stop.Done()
		time.Sleep(rest) // until no requests arrive any more
		_ = s.Shutdown(context.Background())
	}()
	fmt.Println("serving on", address)
	if err := s.ListenAndServe(); err != http.ErrServerClosed {
		return err
	}
	return nil
}

func ask(stop context.Context, times, url, header string) error {
	n, err := strconv.Atoi(times)
	if err != nil {
		return err
	}
	key, value, _ := strings.Cut(header, "=")
	statuses := map[int]int{}
	for range n {
		req, err := http.NewRequestWithContext(stop, http.MethodGet, url, nil)
		if err != nil {
			return err
		}
		req.Header.Set(key, value)
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			return err
		}
		res.Body.Close()
		statuses[res.StatusCode]++
	}
	fmt.Println(statuses)
	return nil
}

func get(stop context.Context, url string) error {
	req, err := http.NewRequestWithContext(stop, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", url, res.Status)
	}
	_, err = io.Copy(os.Stdout, res.Body)
	return err
}
