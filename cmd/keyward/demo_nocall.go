package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/keyward/keyward/internal/lab"
)

// Parameters of the demo of Envoys that make no calls.
const (
	frugalLimit  = 1000             // of a window, for all Envoys together
	frugalWindow = 10 * time.Second // of the demo's rules
	frugalEnvoys = 3
)

// frugalRates are the requests per second to each Envoy, of each kind.
var frugalRates = [frugalEnvoys]int{100, 20, 20}

func frugalRules() string {
	return fmt.Sprintf(`domain: demo
descriptors:
  - key: quota_key               # Envoys spend this limit without calls: %d requests in %v
    rate_limit: {unit: minute, requests_per_unit: %d}
    metadata: {keyward: {window: %s, mechanism: quota, envoys: %d, degraded: fail_closed}}
  - key: call_key                # the same limit, with a call for each request
    rate_limit: {unit: minute, requests_per_unit: %d}
    metadata: {keyward: {window: %s}}
`, frugalLimit, frugalWindow, frugalLimit, frugalWindow, frugalEnvoys, frugalLimit, frugalWindow)
}

const frugalIntroduction = `Keyward: limits that Envoys spend without calls.

   %d Envoys, each with a sidecar; %v requests per second, and the same again with calls
   one limit of %d requests in %v for all Envoys together, and one for calls

`

// runFrugal shows three Envoys that spend one limit without calls, next to the same with calls.
func runFrugal(ctx context.Context, out io.Writer, o demoOptions, e *ending) (err error) {
	if err := o.findEnvoy(); err != nil {
		return err
	}
	dir, removeDir, err := o.folder()
	if err != nil {
		return err
	}
	defer removeDir()
	self, err := os.Executable()
	if err != nil {
		return err
	}
	upstream, stopUpstream, err := startUpstream()
	if err != nil {
		return err
	}
	defer stopUpstream()
	l, err := lab.New(lab.Options{Dir: dir, Bin: filepath.Dir(self), Expect: frugalEnvoys, Rules: map[string]string{"demo.yaml": frugalRules()}})
	if err != nil {
		return err
	}
	defer func() {
		fmt.Fprintln(out, "\r\nstopping the Envoys and the sidecars ...")
		err = errors.Join(err, l.Stop())
	}()
	fmt.Fprintf(out, frugalIntroduction, frugalEnvoys, frugalRates, frugalLimit, frugalWindow)
	s := &frugalStage{lab: l, until: o.length, ending: e}
	if err := s.start(ctx, out, o.envoy, upstream); err != nil {
		return err
	}
	return s.show(ctx, out)
}

// frugalStage is running Envoys and their traffic.
type frugalStage struct {
	lab    *lab.Lab
	until  time.Duration // 0: until the demo is stopped
	ending *ending
	envoys []*frugalEnvoy
}

// frugalEnvoy is an Envoy with its traffic, without and with calls.
type frugalEnvoy struct {
	*lab.Envoy
	free, calling envoyTraffic
}

// start starts the sidecars and Envoys.
func (s *frugalStage) start(ctx context.Context, out io.Writer, binary, upstream string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	var names []string
	for i := range frugalEnvoys {
		names = append(names, fmt.Sprintf("sidecar-%c", 'a'+i))
		if _, err := s.lab.AddSidecar(names[i]); err != nil {
			return err
		}
	}
	if err := s.lab.AwaitRing(ctx, names...); err != nil {
		return err
	}
	fmt.Fprintln(out, "  the sidecars have found each other and use the same ring")
	for i, member := range s.lab.Sidecars {
		name := fmt.Sprintf("envoy-%c", 'a'+i)
		envoy, err := s.lab.AddEnvoy(lab.EnvoyOptions{
			Name: name, Path: binary, Shape: "rlqs", Upstream: upstream,
			Args: []string{"--sidecar", member.RLS, "--from", "quota_key=header:x-quota-key", "--from", "call_key=header:x-call-key", "--timeout", "1s"},
		})
		if err != nil {
			return err
		}
		if err := envoy.Await(ctx, "keyward", 1); err != nil {
			return err
		}
		f := &frugalEnvoy{Envoy: envoy}
		f.free.prepare(envoy.Listener, "x-quota-key", frugalRates[i])
		f.calling.prepare(envoy.Listener, "x-call-key", frugalRates[i])
		s.envoys = append(s.envoys, f)
		fmt.Fprintf(out, "  started %s on http://%s; the page of its sidecar: http://%s/\n", name, envoy.Listener, member.Metrics)
	}
	return nil
}

// show sends traffic and draws it until the demo ends.
func (s *frugalStage) show(ctx context.Context, out io.Writer) error {
	if !pause(ctx, time.Until(time.Now().Truncate(frugalWindow).Add(frugalWindow-time.Second))) { // a second for the first assignments
		return ctx.Err()
	}
	sending, cancel := context.WithCancel(ctx)
	var senders sync.WaitGroup
	defer senders.Wait()
	defer cancel()
	if s.until > 0 {
		defer time.AfterFunc(s.until, cancel).Stop()
	}
	every, newline := 5*time.Second, "\n"
	if restore, raw := rawTerminal(out, s.ending); raw {
		defer restore()
		every, newline = time.Second, "\r\n"
	}
	for _, e := range s.envoys {
		senders.Go(func() { e.free.send(sending) })
		senders.Go(func() { e.calling.send(sending) })
	}
	draw := redrawn(out, func(out io.Writer) { s.draw(ctx, out) }, newline)
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			draw()
		case <-sending.Done():
			senders.Wait()
			draw()
			return s.verdict(out)
		}
	}
}
