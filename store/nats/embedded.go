package nats

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"golang.org/x/sys/unix"

	"github.com/shoal-ml/shoal/internal/durable"
	"github.com/shoal-ml/shoal/store"
)

// embedded is a store whose server runs in this process. Any goroutine may call its methods. It
// listens nowhere, and every write is on the disk before it is acknowledged. A server that reports
// an error, because the disk is full for instance, is not used any more: the next call starts
// another one, which reads what was acknowledged.
type embedded struct {
	client // set by Open, as are the fields down to start
	folder string
	lock   *os.File                              // held as long as the store is open
	start  func(folder string) (*running, error) // starts a server; tests replace it

	mu     sync.Mutex // guards the fields below
	now    *running   // the server in use; nil = the next call starts one
	closed bool
}

// running is one life of the server. Its fields are set before others know it; a later life has
// another one.
type running struct {
	session
	fail   context.CancelCauseFunc // ends the session's context, with the reason
	server *server.Server
}

// Open opens the store in a folder, which it makes if need be, and starts the server. One process
// can have it open at a time. It waits until the server runs.
func Open(folder string) (store.Store, error) {
	folder, err := filepath.Abs(folder)
	if err != nil {
		return nil, err
	}
	lock, err := lockFolder(folder)
	if err != nil {
		return nil, err
	}
	e := &embedded{folder: folder, lock: lock, start: startServer}
	e.client = client{"in the folder " + folder, fullFolder, e.currentSession}
	if _, err := e.currentSession(); err != nil {
		lock.Close()
		return nil, err
	}
	return e, nil
}

// currentSession returns a session with the running server, or starts a new one if that has failed,
// and waits until it is ready. It takes e.mu, so other calls and Close wait too. It is client.use.
func (e *embedded) currentSession() (*session, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return nil, errClosed
	}
	if e.now != nil && e.now.ctx.Err() == nil {
		return &e.now.session, nil
	}
	e.now.stop()
	e.now = nil
	if isDiskFull(e.folder) {
		return nil, fmt.Errorf("the store %s does not start: %w", e.where, errFull)
	}
	now, err := e.start(e.folder)
	if err != nil {
		return nil, fmt.Errorf("the store %s does not start: %w", e.where, err)
	}
	e.now = now
	return &now.session, nil
}

// Close ends the server, waits until it has ended, and unlocks the folder.
func (e *embedded) Close() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return nil
	}
	e.closed = true
	e.now.stop()
	return e.lock.Close()
}

// errClosed is why a store that was closed has no session.
var errClosed = errors.New("it was closed")

// startServer starts a server on a folder, connects to it, and waits until it is ready, for seconds
// at most. The goroutines of the server run until stop, which the caller calls.
func startServer(folder string) (*running, error) {
	r := &running{}
	r.ctx, r.fail = context.WithCancelCause(context.Background())
	var err error
	r.server, err = server.NewServer(&server.Options{
		ServerName: "shoal", DontListen: true, NoSigs: true, NoLog: true,
		JetStream: true, StoreDir: folder, SyncAlways: true, DisableJetStreamBanner: true,
		JetStreamMaxStore: 2 * maxBytes, JetStreamMaxMemory: 1 << 20, // no stream is kept in memory
	})
	if err != nil {
		return nil, err
	}
	r.server.SetLogger(complaints{r.fail}, false, false)
	r.server.Start()
	if err := r.connect(); err != nil {
		r.stop()
		return nil, err
	}
	return r, nil
}

// connect waits until the server is ready, connects to it in memory, and opens the bucket.
// startServer calls it.
func (r *running) connect() (err error) {
	if r.ctx.Err() == nil && !r.server.ReadyForConnections(patience) {
		r.fail(errors.New("the server is not ready"))
	}
	if r.ctx.Err() != nil {
		return context.Cause(r.ctx)
	}
	r.conn, err = nats.Connect("", nats.InProcessServer(r.server), nats.NoReconnect())
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(r.ctx, patience)
	defer cancel()
	if err = r.openBucket(ctx, 1); err == nil {
		err = r.allowBatches(ctx)
	}
	if r.ctx.Err() != nil {
		return context.Cause(r.ctx)
	}
	return err
}

// stop closes the connection and ends the server, and returns when it is down. A nil running is
// stopped already. Who has r alone, or holds embedded.mu, calls it.
func (r *running) stop() {
	if r == nil {
		return
	}
	r.fail(errClosed)
	if r.conn != nil {
		r.conn.Close()
	}
	r.server.Shutdown()
	r.server.WaitForShutdown()
}

// complaints is the log of the server: an error ends its use, the rest is not kept. Goroutines of
// the server call its methods.
type complaints struct{ fail context.CancelCauseFunc }

// Errorf ends the use of the server.
func (c complaints) Errorf(format string, args ...any) { c.fail(complaintError(format, args)) }

// Fatalf ends the use of the server.
func (c complaints) Fatalf(format string, args ...any) { c.fail(complaintError(format, args)) }

// Warnf does nothing.
func (complaints) Warnf(string, ...any) {}

// Noticef does nothing.
func (complaints) Noticef(string, ...any) {}

// Debugf does nothing.
func (complaints) Debugf(string, ...any) {}

// Tracef does nothing.
func (complaints) Tracef(string, ...any) {}

// complaintError returns a message of the server as an error of one line. It is pure.
func complaintError(format string, args []any) error {
	line := strings.Join(strings.Fields(fmt.Sprintf(format, args...)), " ")
	if strings.Contains(line, unix.ENOSPC.Error()) {
		return fmt.Errorf("%w (%s)", errFull, line)
	}
	return errors.New(line)
}

// errFull is why a server on a full disk is not used.
var errFull = errors.New("the disk is full: free some space; what was acknowledged is there")

// isDiskFull asks the system whether the disk of a folder has no room for a server to start. One
// that tries does not say why it fails, and leaves files open.
func isDiskFull(folder string) bool {
	var s unix.Statfs_t
	return unix.Statfs(folder, &s) == nil && s.Bavail*uint64(s.Bsize) < 64<<10
}

// lockFolder makes the folder if need be and locks it against other processes. The lock ends when
// the file that is returned is closed, or with the process.
func lockFolder(folder string) (*os.File, error) {
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return nil, fmt.Errorf("the folder for the store: %w", err)
	}
	f, err := os.OpenFile(filepath.Join(folder, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("the folder for the store: %w", err)
	}
	if err := durable.Flock(f, unix.LOCK_EX|unix.LOCK_NB); err != nil {
		defer f.Close()
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf(
				"locking the store in the folder %s: %w; use a folder on a local disk", folder, err)
		}
		holder, _ := io.ReadAll(io.LimitReader(f, 20))
		return nil, fmt.Errorf("the store in the folder %s is in use by another process (%s): "+
			"end that one, or name another folder", folder, strings.TrimSpace(string(holder)))
	}
	if err := f.Truncate(0); err == nil {
		// for the message above alone: on a full disk it is missing
		fmt.Fprintf(f, "%d\n", os.Getpid())
	}
	return f, nil
}
