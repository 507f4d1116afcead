// Package client is the Go side of a worker: it joins a job, allocates tensors in the arena, and
// calls collectives.
//
//	job, err := client.Join(ctx)
//	grad, err := client.Empty[float32](job, 1<<20)
//	err = client.AllReduce(ctx, job, grad, collective.Mean)
//
// A slice from Empty lies in the arena, where the agent reduces it without a copy; any other slice
// is copied in and out.
package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	api "github.com/shoal-ml/shoal/api/worker"
	"github.com/shoal-ml/shoal/fabric/arena"
	"github.com/shoal-ml/shoal/internal/group"
	"github.com/shoal-ml/shoal/internal/version"
	"github.com/shoal-ml/shoal/topo"
)

// ErrLost means that the agent of this host is gone; the job is over for this worker.
var ErrLost = errors.New("client: the agent is gone: the job has ended or its launcher was killed")

// ErrClosed means that this worker has left the job with Close.
var ErrClosed = errors.New("client: the job was closed")

// errFreed means that Free was called of the group before.
var errFreed = errors.New("client: this group was freed")

// Job is this worker's part in a job, and the group of all ranks. Any goroutine may use its methods
// but Rank, Size and Ranks, which are those of Group, and adoptView. Fields without a word on that
// are set by Join and not changed.
type Job struct {
	*Group
	name string // of the job
	host string // name of this host in the job; empty = solo

	ask    sync.Mutex  // held for a request and its answer; guards messages on conn, buf, closed
	conn   *arena.Conn // the connection to the agent; nil = solo
	buf    []byte      // memory for an answer
	closed bool        // whether this worker has left the job

	block *arena.Segment // the control block, as mapped; nil = solo
	calls *calls         // nil = solo
	mem   memory         // has a lock of its own
	tasks *group.Group   // goroutines that run beside the loop; Close waits for them
	solo  bool           // whether the process runs without an agent

	// What follows changes in Commit and Next, while other goroutines make calls.

	generation atomic.Uint64 // number of the membership
	// aside says that collectives are those of a job of one: the worker is solo, has not entered
	// yet, or was released.
	aside atomic.Bool
	// goal is how many steps the program has said that the training has; 0 = it has said nothing.
	goal atomic.Uint64
	// trains is whether the job has a Trainer.
	trains atomic.Bool
}

// Join takes this process's place in the job that its launcher started, as the SHOAL_ environment
// says. It waits for the agent. Without that environment it returns a job of one, in which every
// collective is done at once, or an error if another launcher has started several processes. The
// caller closes the Job.
func Join(ctx context.Context) (*Job, error) {
	socket := os.Getenv(api.EnvSocket)
	if socket == "" {
		if err := startedByAnother(); err != nil {
			return nil, err
		}
		j := &Job{name: "solo", tasks: group.New(context.Background()), solo: true}
		j.generation.Store(1)
		j.aside.Store(true)
		j.Group = &Group{job: j, size: 1, ranks: []topo.Rank{0}}
		return j, nil
	}
	rank, err := strconv.Atoi(os.Getenv(api.EnvRank))
	if err != nil {
		return nil, fmt.Errorf("client: %s=%q is no rank: start this program with shoal run",
			api.EnvRank, os.Getenv(api.EnvRank))
	}
	conn, err := arena.Dial(ctx, socket)
	if err != nil && ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf(
			"client: no agent answers at %s (is its launcher still running?): %w", socket, err)
	}
	j := &Job{conn: conn, buf: make([]byte, arena.MaxMessage),
		tasks: group.New(context.Background())}
	if err := j.join(rank); err != nil {
		conn.Close()
		return nil, err
	}
	return j, nil
}

// join asks the agent for the place of a rank, and fills j in: it maps the control block and takes
// over the bells. Join calls it, before the job has other users. After an error nothing of it stays
// open but j.conn.
func (j *Job) join(rank int) error {
	var reply api.JoinReply
	fds, err := j.request(&api.JoinRequest{Protocol: arena.Protocol, Version: version.Version,
		Client: "go", Rank: rank, Token: os.Getenv(api.EnvToken), PID: os.Getpid()}, &reply, 3)
	if err != nil {
		return err
	}
	block, err := arena.OpenSegment(fds[0])
	if err != nil {
		arena.CloseFDs(fds[1:])
		return err
	}
	control, err := arena.OpenControl(block.Mem)
	if err != nil {
		arena.CloseFDs(fds[1:])
		return errors.Join(err, block.Close())
	}
	j.name, j.host, j.block = reply.Job, reply.Host, block
	j.generation.Store(uint64(reply.Generation))
	j.calls = newCalls(control, arena.OpenBell(fds[1]), arena.OpenBell(fds[2]), j.conn,
		time.Duration(reply.SpinUS)*time.Microsecond)
	j.mem.segment, j.mem.freed = j.requestSegment, j.tellFreed
	ranks := make([]topo.Rank, reply.Size)
	for i := range ranks {
		ranks[i] = topo.Rank(i)
	}
	j.Group = &Group{job: j, rank: reply.Rank, size: reply.Size, ranks: ranks}
	j.aside.Store(reply.Late)
	return nil
}

// request asks the agent and blocks until its reply, which must carry want file descriptors; they
// are the caller's. It holds j.ask meanwhile.
func (j *Job) request(r, reply api.Message, want int) (fds []int, err error) {
	j.ask.Lock()
	defer j.ask.Unlock()
	if j.closed {
		return nil, ErrClosed
	}
	if err := j.conn.Send(api.Tag(r, 0)); err != nil {
		return nil, j.connError(err)
	}
	b, fds, err := j.conn.Receive(j.buf)
	if err != nil {
		return nil, j.connError(err)
	}
	err = parseReply(b, reply)
	if err == nil && len(fds) != want {
		err = fmt.Errorf("client: the answer to %s carries %d descriptors, expected %d",
			r.TypeName(), len(fds), want)
	}
	if err != nil {
		arena.CloseFDs(fds)
		return nil, err
	}
	return fds, nil
}

// requestSegment asks the agent for a new segment of n bytes, and maps it. The segment is the
// caller's, and its number the agent's for it. It is memory.segment: memory.mu is held.
func (j *Job) requestSegment(n int) (*arena.Segment, uint32, error) {
	var reply api.SegmentReply
	fds, err := j.request(&api.SegmentRequest{Bytes: int64(n)}, &reply, 1)
	if err != nil {
		return nil, 0, err
	}
	s, err := arena.OpenSegment(fds[0])
	if err != nil {
		return nil, 0, errors.Join(err, j.tellFreed(reply.ID))
	}
	return s, reply.ID, nil
}

// tellFreed tells the agent that this worker has unmapped a segment. It waits for the answer. It is
// memory.freed: memory.mu is held.
func (j *Job) tellFreed(id uint32) error {
	_, err := j.request(&api.FreeRequest{ID: id}, &api.FreeReply{}, 0)
	return err
}

// Name returns the job's name.
func (j *Job) Name() string { return j.name }

// Host returns the name of the host that this worker runs on; "" without an agent.
func (j *Job) Host() string { return j.host }

// Generation returns the number of the membership that this worker belongs to.
func (j *Job) Generation() topo.Generation { return topo.Generation(j.generation.Load()) }

// Report hands numbers such as step, loss, accuracy or samples_per_s to the launcher. It does not
// wait for an answer.
func (j *Job) Report(metrics map[string]float64) error {
	if j.solo {
		return nil
	}
	return j.sendWithoutReply(&api.ReportRequest{Metrics: metrics})
}

// maxGoal bounds the number of steps that the agent is told a training has: up to there all
// programs read a number in JSON alike.
const maxGoal = 1 << 53

// Goal tells how many optimizer steps the whole training has, for a program that does not train by
// a Trainer with Epochs or Steps; Report says there with step how many were made. It ends nothing.
// All workers tell the same, and the last call holds. It does not wait for an answer.
func (j *Job) Goal(steps uint64) error {
	if steps == 0 || steps >= maxGoal {
		return fmt.Errorf("client: a training has no %d steps: give 1 to 2^53 - 1", steps)
	}
	j.goal.Store(steps)
	if j.solo {
		return nil
	}
	return j.sendWithoutReply(&api.GoalRequest{Steps: steps})
}

// sendWithoutReply sends the agent a request that has no reply. It holds j.ask meanwhile.
func (j *Job) sendWithoutReply(r api.Message) error {
	j.ask.Lock()
	defer j.ask.Unlock()
	if j.closed {
		return ErrClosed
	}
	if err := j.conn.Send(api.Tag(r, 0)); err != nil {
		return j.connError(err)
	}
	return nil
}

// connError returns an error of the connection as ErrLost where the conversation has ended, and
// else as that of a message that could not be sent, such as one that is too long.
func (j *Job) connError(err error) error {
	var broken *net.OpError
	if errors.Is(err, io.EOF) || errors.As(err, &broken) {
		return fmt.Errorf("%w (%w)", lostError(j.conn), err)
	}
	return fmt.Errorf("client: %w", err)
}

// lostError returns ErrLost, of an agent that has hung up, with what it has said of why.
func lostError(conn *arena.Conn) error {
	var word api.ErrorReply
	if b := conn.LastWord(make([]byte, arena.MaxMessage)); json.Unmarshal(b, &word) != nil ||
		word.Type != word.TypeName() || word.Serial != 0 {
		return ErrLost // it has said nothing, or an answer lies there that nobody took
	}
	return &cutOffError{word.Problem}
}

// cutOffError is an ErrLost of an agent that takes nothing more from this worker.
type cutOffError struct{ how string }

// Error says what the worker did, as the agent has told it.
func (e *cutOffError) Error() string {
	return "client: the job takes nothing more from this worker, which " + e.how
}

// Is reports whether target is ErrLost.
func (e *cutOffError) Is(target error) bool { return target == ErrLost }

// Split returns a group of the listed ranks, of which this one must be a member. It asks the agent,
// and does not wait for the other members. Every member must ask for the same list; the k-th time
// they ask they get the same group. What a worker makes before it has entered the job is a group of
// itself alone, and stays one.
func (j *Job) Split(ranks ...int) (*Group, error) {
	list := make([]topo.Rank, len(ranks))
	for i, r := range ranks {
		list[i] = topo.Rank(r)
	}
	if j.aside.Load() {
		if len(ranks) != 1 || ranks[0] != 0 {
			return nil, fmt.Errorf("client: a job of one has no group of %v", ranks)
		}
		return &Group{job: j, size: 1, ranks: list, alone: true}, nil
	}
	var reply api.GroupReply
	if _, err := j.request(&api.GroupRequest{Ranks: ranks, View: j.generation.Load()},
		&reply, 0); err != nil {
		return nil, err
	}
	return &Group{job: j, id: topo.GroupID(reply.ID), rank: reply.Rank, size: reply.Size,
		ranks: list}, nil
}

// adoptView reads the view that the agent wrote, and sets the generation, aside, and the rank, size
// and ranks of j from it. Only the goroutine of the loop calls it, through Trainer.adoptView; it
// does not block.
func (j *Job) adoptView() (arena.View, error) {
	v, err := j.calls.view()
	if err != nil {
		return v, err
	}
	j.generation.Store(uint64(v.Generation))
	// A released worker must not pass for rank 0: a member keeps its rank, and one that has not
	// been a member gets its number.
	if outside := j.aside.Swap(v.Released); outside || !v.Released {
		j.rank = v.Rank
	}
	j.size, j.ranks = v.Size, j.ranks[:0]
	if v.Released {
		j.size = 1 // v has that of the last step of a job that was stopped
	}
	for r := range j.size {
		j.ranks = append(j.ranks, topo.Rank(r))
	}
	return v, nil
}

// Close leaves the job; a second call does nothing. It waits for a checkpoint that this process
// itself writes. Calls that other goroutines wait for end with ErrClosed. Slices from Empty must
// not be used afterwards.
func (j *Job) Close() error {
	if j.solo {
		return j.tasks.Wait()
	}
	j.calls.stop()
	first, err := j.hangUp()
	if !first {
		return nil
	}
	return errors.Join(err, j.tasks.Wait(), j.calls.closeBells(), j.mem.unmapAll(), j.block.Close())
}

// hangUp tells the agent that this worker leaves, and closes the connection; first is false if that
// was done before. It holds j.ask meanwhile, and so waits for a request under way.
func (j *Job) hangUp() (first bool, err error) {
	j.ask.Lock()
	defer j.ask.Unlock()
	if j.closed {
		return false, nil
	}
	j.closed = true
	// An agent that is gone need not be told.
	_ = j.conn.Send(api.Tag(&api.LeaveRequest{}, 0))
	return true, j.conn.Close()
}

// Group is a set of ranks that call collectives together. Any goroutine may make calls of it. Its
// own methods are for the goroutine of the loop, since Next and Commit change what they read.
type Group struct {
	job        *Job
	id         topo.GroupID // topo.World = all ranks
	rank, size int          // this worker's rank in the group, and the number of members
	ranks      []topo.Rank  // the members, by their rank in the job
	alone      bool         // whether it was made in a job of one: the agent does not know it
	freed      atomic.Bool  // whether Free was called; any goroutine reads it
}

// isAlone reports whether calls of the group are those of a job of one. Any goroutine may call it.
func (g *Group) isAlone() bool { return g.alone || g.job.aside.Load() }

// Free tells the agent that this worker no longer needs the group: the job forgets it when no
// member does, so that a job that makes groups as long as it runs does not come to the limit. No
// call of it may be open, none can be made after it, and its shared results are gone. It takes
// memory.mu, and does not wait for an answer.
func (g *Group) Free() error {
	j := g.job
	switch {
	case g == j.Group:
		return errors.New("client: the group of all ranks lasts as long as the job")
	case g.freed.Swap(true) || g.isAlone():
		return nil
	}
	return errors.Join(j.mem.closeShared(g.id),
		j.sendWithoutReply(&api.UngroupRequest{ID: uint32(g.id)}))
}

// Rank returns this worker's number in the group.
func (g *Group) Rank() int { return g.rank }

// Size returns the number of ranks in the group.
func (g *Group) Size() int { return g.size }

// Ranks lists the members by their rank in the job. The list stays the group's, and changes with
// its members.
func (g *Group) Ranks() []topo.Rank { return g.ranks }

// group returns g: it makes a Group, and a Job, one of Ranks.
func (g *Group) group() *Group { return g }

// Ranks is who takes part in a collective: a Job or a Group.
type Ranks interface{ group() *Group }
