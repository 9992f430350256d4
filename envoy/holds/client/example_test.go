package client_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/keyward/keyward/envoy/holds/client"
)

// complete stands for a model. It returns the number of tokens that it has used.
func complete(string) (uint64, error) { return 250, nil }

func Example() {
	conn, err := grpc.NewClient(member, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		slog.Error("no connection", "error", err)
		return
	}
	defer conn.Close()
	holds, ctx := client.New(conn, "worker-7"), context.Background()

	h, err := holds.Reserve(ctx, client.Reserve{Domain: "llm", Descriptors: client.One("tenant", "acme"), Hits: 600})
	if err != nil {
		slog.Error("cannot reserve", "error", err)
		return
	}
	defer h.Release(ctx) // has no effect after Commit
	used, err := complete("a prompt")
	if err != nil {
		return
	}
	if err := h.Commit(ctx, used); err != nil {
		slog.Error("cannot commit", "error", err)
		return
	}
	limits, err := holds.Usage(ctx, "llm", client.Descriptor("tenant", "acme"))
	if err != nil {
		slog.Error("cannot read the usage", "error", err)
		return
	}
	fmt.Println(limits[0].GetSpent(), "spent,", limits[0].GetLeft(), "left")
	// Output: 250 spent, 750 left
}

// A refusal says when to try again.
func ExampleRefusedError() {
	conn, err := grpc.NewClient(member, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return
	}
	defer conn.Close()
	holds := client.New(conn, "")
	_, err = holds.Reserve(context.Background(), client.Reserve{Domain: "llm", Descriptors: client.One("tenant", "small"), Hits: 5000})
	if refused := (*client.RefusedError)(nil); errors.As(err, &refused) {
		fmt.Println("refused for at most an hour:", refused.RetryAfter() <= time.Hour)
	}
	// Output: refused for at most an hour: true
}
