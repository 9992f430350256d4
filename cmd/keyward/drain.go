package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/spf13/cobra"

	"github.com/keyward/keyward/internal/api"
)

func newDrain() *cobra.Command {
	var socket *string
	var envoy string
	timeout := 30 * time.Second
	cmd := &cobra.Command{
		Use:   "drain",
		Short: "Make this pod's sidecar leave the ring and send its counters to the other members",
		Long:  helpText("drain"),
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
			defer cancel()
			if envoy != "" {
				if err := drainEnvoy(ctx, envoy); err != nil {
					fmt.Fprintln(cmd.ErrOrStderr(), "keyward:", err) // the counters matter more
				}
			}
			return drain(ctx, cmd.OutOrStdout(), *socket)
		},
	}
	socket = socketFlag(cmd.Flags())
	cmd.Flags().StringVar(&envoy, "envoy", "", "`host:port` of the admin page of an Envoy to drain first")
	cmd.Flags().DurationVar(&timeout, "timeout", timeout, "time to wait")
	return cmd
}

// drainEnvoy makes an Envoy ask its clients to disconnect while it continues to listen. It does not wait for them.
func drainEnvoy(ctx context.Context, address string) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+address+"/drain_listeners?graceful&skip_exit", nil)
	if err != nil {
		return fmt.Errorf("drain Envoy: %w", err)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return fmt.Errorf("drain Envoy: %w", err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("drain Envoy: %s answers %s", address, res.Status)
	}
	return nil
}

// drain makes the sidecar behind socket leave, and prints its progress until it has.
func drain(ctx context.Context, out io.Writer, socket string) error {
	res, err := overSocket(ctx, socket, "POST /drain", nil)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	return follow(ctx, out, res.Body)
}

// follow prints lines of progress until the last.
func follow(ctx context.Context, out io.Writer, body io.Reader) error {
	lines := json.NewDecoder(body)
	var p api.DrainStatus
	for {
		if err := lines.Decode(&p); err != nil {
			if ctx.Err() != nil {
				return fmt.Errorf("timeout; the sidecar continues to drain: %w", ctx.Err())
			}
			return fmt.Errorf("the sidecar stopped before it had drained: %w", err)
		}
		if p.Done {
			break
		}
		fmt.Fprintf(out, "%5.1f s  %s, %d counters sent, %d members incomplete\n", p.Seconds, p.State, p.HandedOver, p.Incomplete)
	}
	if !p.Complete {
		return errors.New("drain incomplete: other members lack some counters and continue from their replicas")
	}
	fmt.Fprintf(out, "drained in %.1f s, %d counters sent\n", p.Seconds, p.HandedOver)
	return nil
}
