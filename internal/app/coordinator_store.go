package app

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/keyward/keyward/federation"
	"github.com/keyward/keyward/federation/redis"
)

// CoordinatorStore is where a coordinator records what it has lent. Functions that are nil do nothing.
type CoordinatorStore struct {
	federation.Coordinator
	Setup func(context.Context) error // creates what the store needs; can be repeated
	Init  func(context.Context) error // declares that the records are complete, although they are new
	Sweep func(context.Context) error // removes records of windows that have ended
	Close func()
}

// OpenStore opens the store at a URL for the federation of that name, with those layouts. It does not wait for the store. Its errors contain no
// passwords.
type OpenStore func(ctx context.Context, url, name string, terms federation.TermOf) (CoordinatorStore, error)

func (s *CoordinatorStore) setup(ctx context.Context) error { return optional(ctx, s.Setup) }
func (s *CoordinatorStore) init(ctx context.Context) error  { return optional(ctx, s.Init) }
func (s *CoordinatorStore) sweep(ctx context.Context) error { return optional(ctx, s.Sweep) }

func (s *CoordinatorStore) close() {
	if s.Close != nil {
		s.Close()
	}
}

func optional(ctx context.Context, f func(context.Context) error) error {
	if f == nil {
		return nil
	}
	return f(ctx)
}

// memoryStore is the value of --store without a server.
const memoryStore = "memory"

// openStore opens the store of --store. Without layouts, which are faulty, it only checks the value.
func openStore(f *coordinatorFlags, x *layouts, stores map[string]OpenStore) (s CoordinatorStore, err error) {
	at := f.Store
	if file, isFile := strings.CutPrefix(at, "@"); isFile {
		content, err := os.ReadFile(file)
		if err != nil {
			return s, fmt.Errorf("--store: %w", err)
		}
		at = strings.TrimSpace(string(content))
	}
	name, terms := "", federation.Always(0)
	if x != nil {
		name, terms = x.now().Newest().Name, x.terms
	}
	if at == memoryStore {
		return openMemory(terms, f.Init), nil
	}
	scheme, _, isURL := strings.Cut(at, "://")
	open := stores[scheme]
	switch {
	case isURL && (scheme == "redis" || scheme == "rediss"):
		open = openRedis
	case !isURL || open == nil:
		names := slices.Sorted(maps.Keys(stores))
		const text = "--store: want memory or a URL that begins with redis://, rediss://, %s://"
		return s, fmt.Errorf(text, strings.Join(names, "://, "))
	}
	if s, err = open(context.Background(), at, name, terms); err != nil {
		return s, fmt.Errorf("--store: %w", err)
	}
	return s, nil
}

// openMemory returns a store in memory. It lends only the rest of windows that have begun, unless whole is set.
func openMemory(terms federation.TermOf, whole bool) CoordinatorStore {
	clock := func() int64 { return time.Now().UnixNano() }
	since := clock()
	if whole {
		since = 0
	}
	return CoordinatorStore{Coordinator: federation.NewMemory(terms, since, clock)}
}

func openRedis(ctx context.Context, url, _ string, terms federation.TermOf) (CoordinatorStore, error) {
	c, err := redis.Open(ctx, redis.Options{URL: url, Terms: terms})
	if err != nil {
		return CoordinatorStore{}, err
	}
	return CoordinatorStore{Coordinator: c, Init: c.Init, Close: c.Close}, nil
}

// storeHealth is the result of the newest check of a store. It is safe for concurrent use.
type storeHealth struct {
	mu      sync.Mutex
	checked bool  // guarded by mu
	err     error // guarded by mu
}

var (
	errUnchecked = errors.New("the store was not checked yet")
	errStopping  = errors.New("shutting down")
)

// set records a result. It returns true if the store becomes healthy or unhealthy with it.
func (h *storeHealth) set(err error) (changed bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	changed = !h.checked || (err == nil) != (h.err == nil)
	h.checked, h.err = true, err
	return changed
}

// get returns why the store is not healthy, or nil.
func (h *storeHealth) get() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.checked {
		return errUnchecked
	}
	return h.err
}
