package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/keyward/keyward/internal/certs"
)

// askOptions are the flags of `keyward ask`.
type askOptions struct {
	domain, limit string
	keys          []string
	hits          uint32
	times         int
	want          []string
	timeout       time.Duration
	tls           certs.Files
	names         []string
}

func newAsk() *cobra.Command {
	var o askOptions
	var output *string
	cmd := &cobra.Command{
		Use:     "ask ADDRESS --domain D --key NAME=VALUE",
		Short:   "Call a rate limit service as Envoy does, and print the answer",
		Long:    helpText("ask"),
		Example: helpExamples("ask"),
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			answers, err := askService(cmd.Context(), args[0], o)
			if err != nil {
				return err
			}
			if err := show(cmd.OutOrStdout(), *output, answers, func(w io.Writer) error { return writeAnswers(w, answers) }); err != nil {
				return err
			}
			return wanted(answers, o.want)
		},
	}
	s := cmd.Flags()
	s.SortFlags = false
	s.StringVar(&o.domain, "domain", "", "`domain` of the rules")
	s.StringArrayVar(&o.keys, "key", nil, "`NAME=VALUE` of an entry of the descriptor; repeat it for each entry, in order")
	s.Uint32Var(&o.hits, "hits", 1, "hits of the call")
	s.StringVar(&o.limit, "limit", "", "`N/UNIT` to use instead of the rule's limit: second, minute, hour, day, month or year")
	s.IntVar(&o.times, "times", 1, "number of calls")
	s.StringSliceVar(&o.want, "want", nil, "expected `answers`, ok or over_limit, separated by commas")
	s.DurationVar(&o.timeout, "timeout", 10*time.Second, "time for each answer, including the connection")
	s.StringVar(&o.tls.Cert, "tls-cert", "", "`file` of the client certificate")
	s.StringVar(&o.tls.Key, "tls-key", "", "`file` of its key")
	s.StringVar(&o.tls.CA, "tls-ca", "", "`file` of the CA that signs the service")
	s.StringSliceVar(&o.names, "tls-peer-name", nil, "URI or DNS `names`, one of which the service's certificate must carry (default: any certificate of the CA)")
	output = outputFlag(cmd)
	_, _ = cmd.MarkFlagRequired("domain"), cmd.MarkFlagRequired("key") // the flags exist
	return cmd
}

// askAnswer is one answer.
type askAnswer struct {
	Code     string            `json:"code"` // ok or over_limit
	Statuses []askStatus       `json:"statuses"`
	Headers  map[string]string `json:"headers,omitempty"`
	Seconds  float64           `json:"seconds"`
}

type askStatus struct {
	Code         string  `json:"code"`
	Limit        *uint32 `json:"limit,omitempty"` // nil if no rule limits the descriptor
	Unit         string  `json:"unit,omitempty"`
	Remaining    uint32  `json:"remaining"`
	ResetSeconds float64 `json:"reset_seconds"`
}

// askService makes o.times calls over one connection.
func askService(ctx context.Context, address string, o askOptions) ([]askAnswer, error) {
	req, err := o.request()
	if err != nil {
		return nil, err
	}
	creds := insecure.NewCredentials()
	if !o.tls.Empty() {
		config, err := certs.Client(o.tls, certs.ClientOptions{ServerSANs: o.names})
		if err != nil {
			return nil, err
		}
		creds = credentials.NewTLS(config)
	}
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(creds))
	if err != nil {
		return nil, fmt.Errorf("call %s: %w", address, err)
	}
	defer conn.Close()
	client := pb.NewRateLimitServiceClient(conn)
	answers := make([]askAnswer, o.times)
	for i := range answers {
		if answers[i], err = askOnce(ctx, client, req, o.timeout); err != nil {
			return nil, fmt.Errorf("call %s: %w", address, err)
		}
	}
	return answers, nil
}

func askOnce(ctx context.Context, client pb.RateLimitServiceClient, req *pb.RateLimitRequest, timeout time.Duration) (askAnswer, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	start := time.Now()
	res, err := client.ShouldRateLimit(ctx, req, grpc.WaitForReady(true))
	if err != nil {
		return askAnswer{}, err
	}
	a := askAnswer{Code: strings.ToLower(res.OverallCode.String()), Seconds: time.Since(start).Seconds()}
	for _, s := range res.Statuses {
		out := askStatus{Code: strings.ToLower(s.Code.String()), Remaining: s.LimitRemaining, ResetSeconds: s.DurationUntilReset.AsDuration().Seconds()}
		if l := s.CurrentLimit; l != nil {
			out.Limit, out.Unit = &l.RequestsPerUnit, strings.ToLower(l.Unit.String())
		}
		a.Statuses = append(a.Statuses, out)
	}
	for _, h := range res.ResponseHeadersToAdd {
		if a.Headers == nil {
			a.Headers = map[string]string{}
		}
		a.Headers[h.Key] = h.Value
	}
	return a, nil
}

// request returns the message of a call.
func (o *askOptions) request() (*pb.RateLimitRequest, error) {
	d := &common.RateLimitDescriptor{}
	for _, text := range o.keys {
		key, value, ok := strings.Cut(text, "=")
		if !ok || key == "" {
			return nil, fmt.Errorf("--key %s: want NAME=VALUE", text)
		}
		d.Entries = append(d.Entries, &common.RateLimitDescriptor_Entry{Key: key, Value: value})
	}
	if o.hits == 0 { // HitsAddend 0 of the message means 1
		d.HitsAddend = wrapperspb.UInt64(0)
	}
	if o.limit != "" {
		number, unit, _ := strings.Cut(o.limit, "/")
		n, err := strconv.ParseUint(number, 10, 32)
		u, known := typev3.RateLimitUnit_value[strings.ToUpper(unit)]
		if err != nil || !known || u == 0 {
			return nil, fmt.Errorf("--limit %s: want N/UNIT, as in 2/day", o.limit)
		}
		d.Limit = &common.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: uint32(n), Unit: typev3.RateLimitUnit(u)}
	}
	if o.times < 1 {
		return nil, errors.New("--times: want at least 1")
	}
	return &pb.RateLimitRequest{Domain: o.domain, Descriptors: []*common.RateLimitDescriptor{d}, HitsAddend: o.hits}, nil
}

func writeAnswers(w io.Writer, answers []askAnswer) error {
	for _, a := range answers {
		if _, err := fmt.Fprintf(w, "%-10s", strings.ToUpper(a.Code)); err != nil {
			return err
		}
		for _, s := range a.Statuses {
			if s.Limit == nil {
				fmt.Fprint(w, "  no limit")
				continue
			}
			fmt.Fprintf(w, "  %d of %d per %s left, resets in %gs", s.Remaining, *s.Limit, s.Unit, s.ResetSeconds)
		}
		fmt.Fprintf(w, "  (%.1f ms)\n", a.Seconds*1e3)
	}
	return nil
}

// wanted returns an error unless the answers have the expected codes.
func wanted(answers []askAnswer, want []string) error {
	if len(want) == 0 {
		return nil
	}
	got := make([]string, len(answers))
	for i, a := range answers {
		got[i] = a.Code
	}
	if g, w := strings.Join(got, ","), strings.Join(want, ","); g != w {
		return fmt.Errorf("the answers are %s, want %s", g, w)
	}
	return nil
}
