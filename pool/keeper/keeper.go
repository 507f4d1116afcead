// Package keeper is the shell around package pool: it keeps the record of a pool in a store, has
// the machine of the pool decide, starts the jobs that are to start, each as a launcher in a
// session of its own, and asks their launchers how they are. A keeper that is killed ends no job:
// the next one finds them by what it wrote beside them, and by their control sockets.
package keeper

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/shoal-ml/shoal/internal/durable"
	"github.com/shoal-ml/shoal/internal/group"
	"github.com/shoal-ml/shoal/internal/rundir"
	"github.com/shoal-ml/shoal/pool"
	"github.com/shoal-ml/shoal/store"
)

// Socket, Names, Live and CheckFree find the pools of this host by their sockets. They keep
// nothing, and wait for nobody but a keeper that is connected to; commands and keepers call them on
// any goroutine.

// Config is what a keeper needs.
type Config struct {
	Name   string // of the pool
	Policy string // name of the policy that decides; "" = the usual one
	Host   string // name of this host
	Slots  int    // workers for which it has room
	// Link is how many bytes a second its card carries in each direction; 0 = not known.
	Link    float64
	Dir     string // folder of the files of the pool, which is there
	Program string // the shoal that starts jobs
	Store   store.Store
	Notes   io.Writer // where to tell people what happens; one goroutine at a time writes
	Waiters *Waiters  // tools that wait for the end of the keeper
	Links
}

// Links is how the keepers of several hosts find each other.
type Links struct {
	Machine   string // a random text that is kept on this machine
	Listen    string // HOST:PORT on which the keepers reach this one; "" = the pool has one host
	Authority []byte // of an earlier start, as KeepAuthority got it; nil = there is none
	// KeepAuthority keeps the authority of the links where nobody else can read it.
	KeepAuthority func(authority []byte) error
	// Invite tells, at the head, how other hosts join; it is called again with newer tokens.
	Invite func(address, token string) error

	// Join is where a keeper that is not the head finds one of the pool, and Token lets it in for
	// the first time; "" = it has Authority.
	Join, Token string
}

// tick is how often the machine is told the time when nothing happens.
const tick = time.Second

// keeper is the head of a pool, and the keeper of the host that it is on. Run sets its fields
// before it starts goroutines, and calls open and, after their end, retire and closeNetwork. While
// they run, m, waiting, clock and what writer and headLinks say belong to the goroutine of loop,
// which alone calls settle, written and reply; others have it do something with do and post.
type keeper struct {
	Config
	m       *pool.Machine
	before  string // host that has kept the record until now; "" = nobody has
	host    *host
	events  chan func() // what other goroutines want done
	waiting []waitingReply
	writer  writer
	group   *group.Group
	clock
	headLinks
}

// waitingReply is a submission whose answer waits until the store has the job.
type waitingReply struct {
	id     string
	before map[string]pool.Move
	done   chan pool.Answer // has room for one
}

// clock tells the time as package pool has it. It goes on where the machine's clock is set back,
// from the time that it has told: else all that a pool waits for would stand still for so long. It
// belongs to the goroutine of loop.
type clock struct {
	asked time.Time     // when it was asked last; zero = never
	told  time.Duration // since 1970, what it said then
}

// now returns the time in milliseconds since 1970.
func (c *clock) now() int64 { return c.at(time.Now()) }

// at returns what the clock says at t, which is not before asked.
func (c *clock) at(t time.Time) int64 {
	if !c.asked.IsZero() {
		c.told += t.Sub(c.asked) // by a clock that nobody sets
	}
	c.asked, c.told = t, max(c.told, time.Duration(t.UnixNano()))
	return c.told.Milliseconds()
}

// socketPrefix and socketSuffix stand around the name of a pool in that of its socket.
const (
	socketPrefix = "pool-"
	socketSuffix = ".sock"
)

// Socket returns the path of the socket on which the keeper of a pool answers tools.
func Socket(name string) (string, error) {
	dir, err := rundir.Path()
	return filepath.Join(dir, socketPrefix+name+socketSuffix), err
}

// Names returns the pools that are kept on this host, by their sockets. One whose keeper was killed
// is among them.
func Names() (names []string, err error) {
	paths, err := rundir.List(socketPrefix, socketSuffix)
	for _, path := range paths {
		name := strings.TrimPrefix(filepath.Base(path), socketPrefix)
		names = append(names, strings.TrimSuffix(name, socketSuffix))
	}
	return names, err
}

// answers reports whether a keeper of a pool answers on this host.
func answers(name string) bool {
	socket, err := Socket(name)
	if err != nil {
		return false
	}
	conn, err := net.Dial("unix", socket)
	if err != nil {
		return false
	}
	conn.Close()
	return true
}

// Live returns the pools of this host whose keepers answer.
func Live() (live []string, err error) {
	names, err := Names()
	for _, name := range names {
		if answers(name) {
			live = append(live, name)
		}
	}
	return live, err
}

// CheckFree fails if the pool of a name is kept on this host already.
func CheckFree(name string) error {
	if !answers(name) {
		return nil
	}
	return keptError(name)
}

// keptError returns the error that a pool is kept on this host by another process.
func keptError(name string) error {
	return fmt.Errorf("the pool %s is kept already on this host: shoal queue shows its jobs, and "+
		"shoal pool stop %[1]s ends it", name)
}

// lockFolder locks the folder of the files of a pool for one keeper at a time, before it touches
// anything that another one may use. The lock ends with the file or the process.
func lockFolder(c Config) (io.Closer, error) {
	dir, err := os.Open(c.Dir)
	if err != nil {
		return nil, err
	}
	err = durable.Flock(dir, syscall.LOCK_EX|syscall.LOCK_NB)
	taken := errors.Is(err, syscall.EWOULDBLOCK)
	if err == nil || taken {
		err = CheckFree(c.Name) // also of one with another folder
	}
	if err == nil && taken {
		err = fmt.Errorf("another keeper uses the folder %s, and does not answer here: it begins "+
			"or ends just now, or is on another host that has the same folder, in a container, or "+
			"has another XDG_RUNTIME_DIR: end it there, or set XDG_STATE_HOME to a folder of this "+
			"host alone", c.Dir)
	}
	if err != nil {
		return nil, errors.Join(err, dir.Close())
	}
	return dir, nil
}

// Run keeps a pool until ctx ends or somebody asks for its end; its jobs go on. started is called,
// on a goroutine of the keeper, when the pool answers; it is told how many jobs are not over.
func Run(ctx context.Context, c Config, started func(jobs int)) error {
	socket, err := Socket(c.Name)
	if err != nil {
		return err
	}
	lock, err := lockFolder(c)
	if err != nil {
		return err
	}
	defer lock.Close()
	k := &keeper{Config: c, events: make(chan func(), 64), group: group.New(ctx)}
	defer k.closeNetwork() // when the group has ended, since its handlers wait for that
	if err := k.open(ctx); err != nil {
		k.group.Stop(err)
		return k.group.Wait()
	}
	defer os.Remove(socket)
	k.group.Go("write the record", k.writer.run)
	k.group.Go("report of this host", func(ctx context.Context) error {
		return k.host.reports(ctx, func() {
			r := k.host.report()
			k.do(ctx, func() { k.m.Reported(k.now(), r) })
		})
	})
	k.group.Go("keep the pool", func(ctx context.Context) error {
		k.host.find(ctx)
		if err := k.m.Admit(k.now(), c.Host, c.Machine, k.before == c.Host); err != nil {
			return err
		}
		k.hostUp(&hello{Host: c.Host, Slots: c.Slots, Address: k.address(), Link: c.Link})
		started(len(k.m.Jobs(false)))
		return k.loop(ctx)
	})
	err = k.group.Wait()
	k.retire()
	return err
}

// open takes what the store has, for which it waits, leads the pool from then on, and has other
// hosts and tools find it. Where it fails it may have done some of that.
func (k *keeper) open(ctx context.Context) error {
	k.writer = newWriter(k.Store)
	if err := k.restore(ctx); err != nil {
		return err
	}
	if err := k.lead(ctx); err != nil {
		return err
	}
	k.tools = k.handler() // before another host can ask
	if err := k.listen(); err != nil {
		return err
	}
	if k.network != nil {
		k.group.Go("renew the token", k.renew)
	}
	k.host = newHost(k.Config, k.group)
	k.host.jobsAt = hostOf(k.address())
	return serveTools(k.group, k.Name, k.tools)
}

// serveTools answers tools on the socket of a pool, on goroutines of g, until g ends.
func serveTools(g *group.Group, name string, h http.Handler) error {
	socket, err := Socket(name)
	if err == nil {
		err = rundir.CheckSocket(socket)
	}
	if err != nil {
		return err
	}
	_ = os.Remove(socket) // of a keeper that was killed
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return fmt.Errorf("the socket of the pool: %w", err)
	}
	g.Go("answer tools", func(ctx context.Context) error {
		server := &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second}
		stop := context.AfterFunc(ctx, func() { server.Close() })
		defer stop()
		if err := server.Serve(listener); ctx.Err() == nil {
			return err
		}
		return nil
	})
	return nil
}

// restore sets k.m to the machine that the record in the store is of, for which it waits, and
// k.before.
func (k *keeper) restore(ctx context.Context) error {
	all := []string{pool.MemoryKey(k.Name)}
	for _, prefix := range []string{pool.JobPrefix(k.Name), pool.HostPrefix(k.Name),
		pool.PastPrefix(k.Name)} {
		keys, err := k.Store.Keys(ctx, prefix)
		if err != nil {
			return err
		}
		all = append(all, keys...)
	}
	values := map[string][]byte{}
	for _, key := range all {
		value, err := k.writer.read(ctx, key)
		if errors.Is(err, store.ErrNotFound) {
			continue
		}
		if err != nil {
			return err
		}
		values[key] = value
	}
	text, err := k.writer.read(ctx, pool.PoolKey(k.Name))
	if err == nil {
		var last pool.Head
		last, err = pool.DecodeHead(k.Name, text)
		k.before = last.Host
	}
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return err
	}
	k.m, err = pool.Restore(pool.Config{Name: k.Name, Policy: k.Policy}, k.now(), values)
	return err
}

// headValue returns the value that says who leads the pool, for the store: run is the id of this
// start, since and ended are when it began to lead and ended, 0 = it has not.
func (k *keeper) headValue(run string, since, ended int64) pool.Write {
	return pool.Write{Key: pool.PoolKey(k.Name), Value: pool.EncodeHead(k.Name,
		pool.Head{Host: k.Host, Address: k.address(), Run: run, Since: since, Ended: ended,
			Policy: k.Policy})}
}

// lead writes into the store that this keeper leads the pool from now on, and waits for that.
func (k *keeper) lead(ctx context.Context) error {
	id := make([]byte, 6)
	_, _ = rand.Read(id) // does not fail
	k.writer.id, k.writer.since = hex.EncodeToString(id), k.now()
	return k.writer.write(ctx, k.headValue(k.writer.id, k.writer.since, 0))
}

// retire writes what the writer has not come to write, such as what a tool was told just now, and
// that this keeper has ended in order. It waits a few seconds for the store at most.
func (k *keeper) retire() {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	for _, w := range k.writer.unwritten() {
		k.m.Rewrite(w)
	}
	for _, w := range k.m.TakeWrites() {
		_ = k.writer.write(ctx, w) // what is missing is found out again
	}
	_ = k.writer.write(ctx, k.headValue(k.writer.id, k.writer.since, k.now()))
}

// loop does one thing after the other until ctx ends. It settles at most a quarter of the time:
// where many jobs wait, and a decision takes as long as several submissions, the next decision is
// about all that have come meanwhile. It fails where somebody else leads the pool.
func (k *keeper) loop(ctx context.Context) error {
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	for {
		began := time.Now()
		k.settle()
		rest := time.NewTimer(3 * time.Since(began))
		for rested, happened := false, false; !rested || !happened; {
			select {
			case f := <-k.events:
				f()
				happened = true
			case w := <-k.writer.done:
				if err := k.written(w); err != nil {
					return err
				}
				happened = true
			case <-ticker.C:
				k.m.Tick(k.now())
				happened = true
			case <-rest.C:
				rested = true
			case <-ctx.Done():
				return nil
			}
		}
	}
}

// settle has the machine decide, and does what follows. What is to be written is written by the
// writer, one batch after the other; orders wait in the machine until it is.
func (k *keeper) settle() {
	k.m.Settle(k.now())
	for _, note := range k.m.TakeNotes() {
		fmt.Fprintln(k.Notes, "shoal:", note)
	}
	if !k.writer.busy {
		if list := k.m.TakeWrites(); len(list) > 0 {
			k.writer.busy = true
			k.writer.todo <- list
		}
	}
	for _, o := range k.m.TakeOrders() {
		k.order(o)
	}
	k.reply()
}

// written tells the machine what came of a batch of writes. It fails if somebody else leads the
// pool.
func (k *keeper) written(b batch) error {
	k.writer.busy = false
	for _, w := range b.written {
		k.m.Written(k.now(), w)
	}
	for _, w := range b.rest {
		k.m.Rewrite(w)
	}
	switch {
	case errors.Is(b.err, store.ErrConflict):
		return fmt.Errorf("somebody else keeps the pool %s by now, so this keeper ends: %w",
			k.Name, b.err)
	case b.err != nil && !k.writer.failing:
		fmt.Fprintf(k.Notes, "shoal: the record of the pool: %v; jobs go on, and nothing is "+
			"decided until it can be written\n", b.err)
	}
	k.writer.failing = b.err != nil
	return nil
}

// reply answers submissions that are written.
func (k *keeper) reply() {
	rest := k.waiting[:0]
	for _, r := range k.waiting {
		if k.m.IsWritten(r.id) {
			r.done <- k.m.Answered(r.id, r.before)
		} else {
			rest = append(rest, r)
		}
	}
	k.waiting = rest
}

// do runs f on the goroutine of loop and waits for it; false = the keeper ends, or ctx does, and
// then f may run later or not at all. It is not for that goroutine.
func (k *keeper) do(ctx context.Context, f func()) bool {
	done := make(chan struct{})
	select {
	case k.events <- func() { f(); close(done) }:
	case <-ctx.Done():
		return false
	case <-k.group.Context().Done():
		return false
	}
	select {
	case <-done:
		return true
	case <-k.group.Context().Done():
		return false
	}
}

// post has the goroutine of loop call f soon, or never where the keeper ends. It waits for room
// while much is to be done, so it is not for that goroutine.
func (k *keeper) post(f func()) {
	select {
	case k.events <- f:
	case <-k.group.Context().Done():
	}
}
