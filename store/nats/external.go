package nats

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/shoal-ml/shoal/store"
)

// Servers says where NATS runs, and how it knows who asks.
type Servers struct {
	// URL is nats://HOST:PORT or tls://HOST:PORT, or several with commas between. It may hold
	// USER:PASSWORD@ or TOKEN@ in front of the host.
	URL string
	// Credentials is the path of a .creds file; "" = none.
	Credentials string
}

// external is a store on servers that run elsewhere. Any goroutine may call its methods. A lost
// connection is made again in the background; calls that wait for an answer on the lost one fail at
// once.
type external struct {
	client
	session session // set by connect, without ctx; each call gets a copy with the context line

	mu     sync.Mutex              // guards the fields below
	line   context.Context         // a context that ends with the present connection
	cut    context.CancelCauseFunc // ends line, with the reason
	closed bool
}

// Connect connects to the store on NATS servers, which must have JetStream. It makes the bucket if
// it is not there, with three replicas on a cluster. It fails if no server answers now. ctx ends
// the search for the bucket, and not the dialling before it, for which NATS has a limit of its own.
func Connect(ctx context.Context, s Servers) (store.Store, error) {
	e, err := connect(ctx, s)
	if err != nil {
		return nil, err
	}
	return e, nil
}

// connect is Connect, with the type that ConnectLater needs. It waits for the servers.
func connect(ctx context.Context, s Servers) (*external, error) {
	e := &external{}
	e.line, e.cut = context.WithCancelCause(context.Background())
	e.client = client{"at " + withoutSecrets(s.URL), fullServers, e.currentSession}
	if err := checkAddresses(s.URL); err != nil {
		return nil, fmt.Errorf("%w: %w", store.ErrUnavailable, err)
	}
	conn, err := nats.Connect(s.URL,
		append(s.options(), nats.DisconnectErrHandler(e.connectionLost))...)
	if err != nil {
		return nil, fmt.Errorf("%w: there is no NATS server %s that lets shoal in: %w; start "+
			"it, or check the address and the credentials", store.ErrUnavailable, e.where, err)
	}
	e.session.conn = conn
	replicas := 1
	if conn.ConnectedClusterName() != "" {
		replicas = 3
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if err := e.session.openBucket(ctx, replicas); err != nil {
		conn.Close()
		return nil, fmt.Errorf("the store %s: %w: %w", e.where, store.ErrUnavailable,
			e.withAdvice(err))
	}
	return e, nil
}

// currentSession returns a session for one call, whose context ends with the present connection. It
// does not look whether the servers answer, fails only after Close, and waits for nobody. It is
// client.use.
func (e *external) currentSession() (*session, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return nil, errClosed
	}
	s := e.session
	s.ctx = e.line
	return &s, nil
}

// connectionLost ends the calls that wait for an answer on a connection that is lost. The client
// library calls it, on a goroutine of its own.
func (e *external) connectionLost(*nats.Conn, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.cut(errors.New("the connection was lost"))
	e.line, e.cut = context.WithCancelCause(context.Background())
}

// options returns options with which the client library connects again for ever, with pauses of up
// to patience, and keeps nothing to send it later.
func (s Servers) options() []nats.Option {
	options := []nats.Option{
		nats.Name("shoal"),
		nats.MaxReconnects(-1),
		nats.IgnoreAuthErrorAbort(), // a server may come back before it knows its users
		nats.CustomReconnectDelay(func(attempts int) time.Duration {
			return min(50*time.Millisecond<<min(attempts, 10), patience)
		}),
		// what cannot be sent fails now, and is not sent behind the caller's back later
		nats.ReconnectBufSize(-1),
		nats.PingInterval(patience), nats.MaxPingsOutstanding(2), // a server that vanished is left
		nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}), // Conn.LastError has it
	}
	if s.Credentials != "" {
		options = append(options, nats.UserCredentials(s.Credentials))
	}
	return options
}

// Close closes the connection. Calls under way fail. A second call changes nothing.
func (e *external) Close() error {
	e.mu.Lock()
	e.closed = true
	e.cut(errClosed)
	e.mu.Unlock()
	e.session.conn.Close()
	return nil
}

// checkAddresses fails for addresses that cannot be read. The error has nothing of them, which may
// be a part of a password. It is pure.
func checkAddresses(addresses string) error {
	for a := range strings.SplitSeq(addresses, ",") {
		if _, err := url.Parse(strings.TrimSpace(a)); err != nil {
			return errors.New("the address of the NATS server cannot be read: write " +
				"nats://HOST:4222 or nats://USER:PASSWORD@HOST:4222, with %25 for a % in a " +
				"password, %2F for a /, %23 for a # and %20 for a space")
		}
	}
	return nil
}

// withoutSecrets returns addresses without the names and passwords in them. It is pure.
func withoutSecrets(addresses string) string {
	all := strings.Split(addresses, ",")
	for i, a := range all {
		u, err := url.Parse(strings.TrimSpace(a))
		if err != nil {
			all[i] = "(an address that cannot be read)"
			continue
		}
		u.User = nil
		all[i] = u.String()
	}
	return strings.Join(all, ",")
}
