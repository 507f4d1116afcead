// Package mem is a store in the memory of one process, for tests: it can be down, and lose answers.
package mem

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/shoal-ml/shoal/store"
	"github.com/shoal-ml/shoal/store/record"
)

// Server holds what its clients share. Any goroutine may call its exported methods.
type Server struct {
	mu      sync.Mutex // guards all fields
	entries map[string]store.Entry
	last    store.Revision               // revision of the newest write; 0 = none
	fail    func(op Op, key string) Fate // decides on the fate of each call; nil = all work
}

// New returns an empty store.
func New() *Server { return &Server{entries: map[string]store.Entry{}} }

// Op is what a client asks for.
type Op string

// The calls of a store.
const (
	Get    Op = "get"
	Create Op = "create"
	Update Op = "update"
	Keys   Op = "keys"
)

// Fate is what becomes of a call.
type Fate int

// The fates.
const (
	Works   Fate = iota
	Lost         // the call never arrives
	Unheard      // the call is done, and its answer is lost
)

// SetFaults has f decide on the fate of all later calls; with nil they work. f may be called by
// several goroutines at once, and may wait, which makes the store slow.
func (s *Server) SetFaults(f func(op Op, key string) Fate) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fail = f
}

// Open returns a client. Any goroutine may call its methods.
func (s *Server) Open() store.Store {
	ctx, cancel := context.WithCancelCause(context.Background())
	return &client{s, ctx, cancel}
}

// client is the store of one process. Any goroutine may call its methods, which wait as long as
// Server.SetFaults has them wait.
type client struct {
	server *Server
	open   context.Context // ends with Close
	cancel context.CancelCauseFunc
}

// Get implements store.Store: it returns what a key holds, or ErrNotFound.
func (c *client) Get(ctx context.Context, key string) (e store.Entry, err error) {
	if err := record.CheckKey(key); err != nil {
		return e, err
	}
	err = c.call(ctx, Get, key, func(s *Server) (err error) {
		if e, err = s.find(key); err == nil {
			e.Value = bytes.Clone(e.Value)
		}
		return err
	})
	return e, err
}

// Create implements store.Store: it writes a key that holds nothing, or returns ErrExists.
func (c *client) Create(ctx context.Context, key string, value []byte) (r store.Revision,
	err error) {
	if err := record.CheckEntry(key, value); err != nil {
		return 0, err
	}
	err = c.call(ctx, Create, key, func(s *Server) error {
		if _, err := s.find(key); err == nil {
			return fmt.Errorf("%s: %w", key, store.ErrExists)
		}
		r = s.put(key, value)
		return nil
	})
	return r, err
}

// Update implements store.Store: it replaces the value with the revision was, or returns
// ErrConflict.
func (c *client) Update(ctx context.Context, key string, value []byte,
	was store.Revision) (r store.Revision, err error) {
	if err := record.CheckEntry(key, value); err != nil {
		return 0, err
	}
	err = c.call(ctx, Update, key, func(s *Server) error {
		if err := s.checkRevision(key, was); err != nil {
			return err
		}
		r = s.put(key, value)
		return nil
	})
	return r, err
}

// Keys implements store.Store: it returns the keys below a prefix, in ascending order.
func (c *client) Keys(ctx context.Context, prefix string) (keys []string, err error) {
	if err := record.CheckKey(prefix); err != nil {
		return nil, err
	}
	err = c.call(ctx, Keys, prefix, func(s *Server) error {
		for _, key := range slices.Sorted(maps.Keys(s.entries)) {
			if strings.HasPrefix(key, prefix+".") {
				keys = append(keys, key)
			}
		}
		return nil
	})
	return keys, err
}

// Close implements store.Store: later calls of this client fail.
func (c *client) Close() error {
	c.cancel(fmt.Errorf("%w: it was closed", store.ErrUnavailable))
	return nil
}

// String implements store.Store: it says where the store is.
func (c *client) String() string { return "in memory" }

// call runs do with the server locked, unless the call is lost on the way, and returns
// ErrUnavailable if its answer is lost.
func (c *client) call(ctx context.Context, op Op, key string, do func(*Server) error) error {
	if c.open.Err() != nil {
		return context.Cause(c.open)
	}
	if ctx.Err() != nil {
		return fmt.Errorf("%w: %w", store.ErrUnavailable, context.Cause(ctx))
	}
	s := c.server
	fate := s.chooseFate(op, key)
	if fate == Lost {
		return store.ErrUnavailable
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := do(s); fate == Works {
		return err
	}
	return store.ErrUnavailable
}

// chooseFate decides on the fate of a call. s.mu is not held, since the function of SetFaults may
// wait.
func (s *Server) chooseFate(op Op, key string) Fate {
	s.mu.Lock()
	fail := s.fail
	s.mu.Unlock()
	if fail == nil {
		return Works
	}
	return fail(op, key)
}

// find returns what a key holds. s.mu is held.
func (s *Server) find(key string) (store.Entry, error) {
	e, ok := s.entries[key]
	if !ok {
		return e, fmt.Errorf("%s: %w", key, store.ErrNotFound)
	}
	return e, nil
}

// checkRevision fails when a key has another revision than was. s.mu is held.
func (s *Server) checkRevision(key string, was store.Revision) error {
	if e, err := s.find(key); err != nil || e.Revision != was {
		return fmt.Errorf("%s: %w", key, store.ErrConflict)
	}
	return nil
}

// put writes a copy of value under key, and returns its revision. s.mu is held.
func (s *Server) put(key string, value []byte) store.Revision {
	s.last++
	s.entries[key] = store.Entry{Value: bytes.Clone(value), Revision: s.last}
	return s.last
}
