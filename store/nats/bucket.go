// Package nats keeps a [store.Store] in NATS JetStream: in a folder, with the server inside this
// process ([Open]), or on servers that run elsewhere ([Connect]). Both are a key-value bucket
// called shoal, so `nats kv ls shoal` shows what is in it.
package nats

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/shoal-ml/shoal/store"
	"github.com/shoal-ml/shoal/store/record"
)

const (
	bucketName = "shoal"
	streamName = "KV_" + bucketName
	subjects   = "$KV." + bucketName + "."
	maxBytes   = 256 << 20 // the size of a bucket that shoal makes
	// patience is how long a call waits for an answer. Nobody who trains waits meanwhile.
	patience = 5 * time.Second
)

// session is a bucket as long as it can be used. Its fields are set before others know it, ctx and
// conn by who makes it and the others by openBucket; then several goroutines may use it at once.
type session struct {
	ctx    context.Context // ends when the bucket cannot be used any more, with the reason
	conn   *nats.Conn
	js     jetstream.JetStream
	kv     jetstream.KeyValue
	stream jetstream.Stream
}

// openBucket finds the bucket on the servers of s.conn, or makes it. It fails for a bucket whose
// settings do not fit. It waits for the servers until ctx ends.
func (s *session) openBucket(ctx context.Context, replicas int) (err error) {
	if s.js, err = jetstream.New(s.conn); err != nil {
		return err
	}
	s.stream, err = s.js.Stream(ctx, streamName)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		s.stream, err = s.js.CreateStream(ctx, streamConfig(replicas))
		if errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) { // another agent was faster
			s.stream, err = s.js.Stream(ctx, streamName)
		}
	}
	if err != nil {
		return err
	}
	switch c := s.stream.CachedInfo().Config; {
	case c.MaxAge != 0:
		return fmt.Errorf("the bucket %s forgets what is older than %v: take that limit away "+
			"(nats stream edit %s)", bucketName, c.MaxAge, streamName)
	case c.AllowDirect:
		return fmt.Errorf("the bucket %s lets any replica answer, so what is read may be old: "+
			"forbid that (nats stream edit %s --no-allow-direct)", bucketName, streamName)
	}
	s.kv, err = s.js.KeyValue(ctx, bucketName)
	return err
}

// streamConfig returns the settings of a key-value bucket as the clients of NATS make it, with two
// differences: it never forgets by itself, and it is read where it is written, so that nobody reads
// what is out of date (AllowDirect lets any replica answer). It is pure.
func streamConfig(replicas int) jetstream.StreamConfig {
	return jetstream.StreamConfig{
		Name: streamName, Description: "the record of the jobs of shoal",
		Subjects: []string{subjects + ">"}, Storage: jetstream.FileStorage,
		Replicas: replicas, MaxMsgsPerSubject: 1, MaxBytes: maxBytes, Discard: jetstream.DiscardNew,
		AllowRollup: true, DenyDelete: true,
	}
}

// client is what all stores of this package share: the calls of a store, made in a session. Any
// goroutine may call its methods, which wait for the server but for String.
type client struct {
	where string // where the store is, for messages
	full  string // what a person can do when it has no room left
	// use returns a session for one call, or says why there is none; it may connect or start a
	// server, and wait for that.
	use func() (*session, error)
}

// String implements store.Store: it says where the store is.
func (c *client) String() string { return c.where }

// Get implements store.Store: it returns what a key holds, or ErrNotFound.
func (c *client) Get(ctx context.Context, key string) (e store.Entry, err error) {
	if err := record.CheckKey(key); err != nil {
		return e, err
	}
	err = c.call(ctx, key, func(ctx context.Context, s *session) error {
		found, err := s.kv.Get(ctx, key)
		if err == nil {
			e = store.Entry{Value: found.Value(), Revision: store.Revision(found.Revision())}
		}
		return err
	})
	return e, err
}

// Create implements store.Store: it writes a key that holds nothing, or returns ErrExists.
func (c *client) Create(ctx context.Context, key string, value []byte) (store.Revision, error) {
	return c.write(ctx, key, value, func(ctx context.Context, s *session) (uint64, error) {
		return s.kv.Create(ctx, key, value)
	})
}

// Update implements store.Store: it replaces the value with the revision was, or returns
// ErrConflict.
func (c *client) Update(ctx context.Context, key string, value []byte,
	was store.Revision) (store.Revision, error) {
	return c.write(ctx, key, value, func(ctx context.Context, s *session) (uint64, error) {
		if was == 0 { // to NATS it would mean Create
			return 0, jetstream.ErrKeyRevisionMismatch
		}
		return s.kv.Update(ctx, key, value, uint64(was))
	})
}

// write checks a key and a value, and calls do with a session: do writes them, and returns the
// revision.
func (c *client) write(ctx context.Context, key string, value []byte,
	do func(context.Context, *session) (uint64, error)) (r store.Revision, err error) {
	if err := record.CheckEntry(key, value); err != nil {
		return 0, err
	}
	err = c.call(ctx, key, func(ctx context.Context, s *session) error {
		n, err := do(ctx, s)
		r = store.Revision(n)
		return err
	})
	return r, err
}

// Keys implements store.Store: it returns the keys below a prefix, in ascending order. It asks for
// the names alone; the lister of the client library takes a lost connection for the end of the
// list.
func (c *client) Keys(ctx context.Context, prefix string) (keys []string, err error) {
	if err := record.CheckKey(prefix); err != nil {
		return nil, err
	}
	err = c.call(ctx, prefix, func(ctx context.Context, s *session) error {
		info, err := s.stream.Info(ctx, jetstream.WithSubjectFilter(subjects+prefix+".>"))
		if err != nil {
			return err
		}
		for _, subject := range slices.Sorted(maps.Keys(info.State.Subjects)) {
			keys = append(keys, strings.TrimPrefix(subject, subjects))
		}
		return nil
	})
	return keys, err
}

// call calls do with a session, and returns its error as one of package store, which names key. The
// context of do ends with that of the session, and after patience.
func (c *client) call(ctx context.Context, key string,
	do func(context.Context, *session) error) error {
	s, err := c.use()
	if errors.Is(err, store.ErrUnavailable) {
		return err
	}
	if err != nil {
		return fmt.Errorf("%w: %w", store.ErrUnavailable, err)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, patience,
		fmt.Errorf("no answer within %v", patience))
	defer cancel()
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	defer context.AfterFunc(s.ctx, func() { fail(context.Cause(s.ctx)) })()
	err = do(ctx, s)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, jetstream.ErrKeyNotFound), errors.Is(err, jetstream.ErrKeyDeleted):
		return fmt.Errorf("%s: %w", key, store.ErrNotFound)
	case errors.Is(err, jetstream.ErrKeyRevisionMismatch):
		return fmt.Errorf("%s: %w", key, store.ErrConflict)
	case errors.Is(err, jetstream.ErrKeyExists):
		return fmt.Errorf("%s: %w", key, store.ErrExists)
	case ctx.Err() != nil:
		err = context.Cause(ctx)
		if last := s.conn.LastError(); last != nil && !errors.Is(err, context.Canceled) {
			err = fmt.Errorf("%w (%w)", err, last)
		}
	}
	return fmt.Errorf("%w: %w", store.ErrUnavailable, c.withAdvice(err))
}

// What to do about a store that is full. Only servers elsewhere can be asked to purge.
const (
	fullServers = "purge the generations of jobs that have ended, or give the bucket more"
	fullFolder  = "name another folder, or delete this one when no job in it is to go on"
)

// withAdvice adds to an error of JetStream what a person can do about it, if anything. It is pure.
func (c *client) withAdvice(err error) error {
	var api *jetstream.APIError
	switch {
	case errors.Is(err, jetstream.ErrJetStreamNotEnabled),
		errors.Is(err, jetstream.ErrJetStreamNotEnabledForAccount),
		errors.Is(err, nats.ErrNoResponders):
		return fmt.Errorf("JetStream does not answer there: start the NATS server with it "+
			"(nats-server -js), and allow it for this account (%w)", err)
	case errors.As(err, &api) && (api.ErrorCode == storeFailed || api.ErrorCode == noRoom):
		return fmt.Errorf("there is no room left: %s (%w)", c.full, err)
	}
	return err
}

// Codes of JetStream that its client has no names for.
const (
	noRoom      = 10047 // beyond the limits of the account
	storeFailed = 10077 // beyond those of the bucket
)
