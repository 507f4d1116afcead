package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"time"

	"github.com/shoal-ml/shoal/agent/checkpoints"
	api "github.com/shoal-ml/shoal/api/worker"
	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/data/cursor"
	"github.com/shoal-ml/shoal/fabric/arena"
	"github.com/shoal-ml/shoal/internal/version"
	"github.com/shoal-ml/shoal/setting"
	"github.com/shoal-ml/shoal/topo"
)

// session is the conversation with one worker on its control socket. A goroutine of its own runs
// serve, and with it all methods but unpin and reportLine: they may block, and reach the engine's
// state only through engine.runAndWait and engine.runLater. Only that goroutine touches joined and
// the fields below; those above stay as they are, worker from the join on.
type session struct {
	agent   *Agent
	conn    *arena.Conn
	worker  topo.WorkerID // meaningful once the worker has joined
	joined  bool
	serial  uint64              // number of the request that is served
	lastSeg uint32              // newest number of a segment or shared result; 0 = none yet
	reads   *checkpoints.Source // checkpoint that was fetched for the worker; nil = none
	// groups are the newest answers to requests for groups that have a serial, the newest last; at
	// most mostGroupsKept.
	groups []*api.GroupReply
}

// mostGroupsKept is how many answers are kept for requests that a worker makes again.
const mostGroupsKept = 16

// serve answers requests, one after another, until the worker leaves or its socket closes.
func (s *session) serve() {
	buf := make([]byte, arena.MaxMessage)
	for {
		b, fds, err := s.conn.Receive(buf)
		arena.CloseFDs(fds) // a worker has nothing to hand over
		if err != nil {
			if !errors.Is(err, io.EOF) && !errors.Is(err, net.ErrClosed) {
				s.refuse(err)
			}
			return
		}
		m, serial, err := api.ParseRequest(b)
		s.serial = serial
		if _, is := m.(*api.LeaveRequest); is && err == nil {
			s.agent.loseAfterLinger(s.worker, s.joined)
			return
		}
		if err = s.serveRequest(m, err); err != nil {
			s.refuse(err)
		}
	}
}

// refuse answers the request that is served with an error. If the answer cannot be sent, the worker
// is gone, which Receive will tell.
func (s *session) refuse(err error) {
	reply := &api.ErrorReply{Problem: err.Error()}
	var field *collective.FieldError
	if errors.As(err, &field) {
		reply.Field = field.Field
	}
	_ = s.reply(reply)
}

// reply sends the answer to the request that is served, with file descriptors for the worker; they
// stay open here.
func (s *session) reply(m api.Message, fds ...int) error {
	return s.conn.Send(api.Tag(m, s.serial), fds...)
}

// serveRequest carries a request out and answers it; an error = it is not answered yet. invalid is
// what is wrong with its fields; nil if nothing is.
func (s *session) serveRequest(m api.Message, invalid error) error {
	join, joins := m.(*api.JoinRequest)
	var unknown *api.UnknownType
	switch {
	case joins && join.Protocol != arena.Protocol:
		// Whatever else is wrong with its request, an old worker must learn that it is old.
		return fmt.Errorf("the worker (%s, shoal %s) speaks protocol %d, the agent (shoal %s) "+
			"speaks %d: install the same version of shoal on both sides",
			join.Client, join.Version, join.Protocol, version.Version, arena.Protocol)
	case errors.As(invalid, &unknown):
		return &collective.FieldError{Field: "type",
			Problem: fmt.Sprintf("%v of protocol %d", unknown, arena.Protocol)}
	case invalid != nil:
		return fmt.Errorf("a message that is no request: %w", invalid)
	case joins:
		return s.serveJoin(join)
	case !s.joined:
		return fmt.Errorf("%q before join: the first message must be join", m.TypeName())
	}
	return s.serveMemberRequest(m)
}

// serveMemberRequest carries out a request of a worker that has joined.
func (s *session) serveMemberRequest(m api.Message) error {
	switch r := m.(type) {
	case *api.SegmentRequest:
		return s.serveSegment(r.Bytes, r.Later)
	case *api.SharedRequest:
		return s.serveShared(r)
	case *api.FreeRequest:
		return s.serveFree(r.ID)
	case *api.GroupRequest:
		return s.serveGroup(r)
	case *api.UngroupRequest:
		s.agent.ungroup(s.worker, topo.GroupID(r.ID))
		return nil
	case *api.WithdrawRequest:
		return s.serveWithdraw(r)
	case *api.DataRequest:
		return s.serveData(r)
	case *api.SaveRequest:
		return s.serveSave(r)
	case *api.SavedRequest:
		return s.serveSaved(r.Wait)
	case *api.ResumeRequest:
		return s.serveResume(r)
	case *api.LoadRequest:
		return s.serveLoad(r)
	case *api.StateRequest:
		return s.serveStatement(r)
	case *api.ShapeRequest:
		return s.serveShape()
	case *api.BucketRequest:
		return s.serveBucket(r)
	case *api.SettingRequest:
		return s.serveSetting()
	case *api.MemoryRequest:
		s.agent.addDeviceMemory(s.worker, r)
		return nil
	case *api.GoalRequest:
		s.agent.driver.published.goal.Store(r.Steps)
		return nil
	case *api.StayRequest:
		return s.serveStay(r)
	case *api.ParkRequest:
		s.agent.reportPark(s.worker, r)
		return nil
	case *api.ReportRequest:
		s.agent.reportMetrics(s.worker, r.Metrics)
		return nil
	}
	return fmt.Errorf("the agent has no answer to %q", m.TypeName())
}

// serveJoin lets a worker with the right token join, and hands it its control block and bells. A
// second worker of that number is refused.
func (s *session) serveJoin(r *api.JoinRequest) error {
	a := s.agent
	if s.joined {
		return fmt.Errorf("rank %d has joined already on this socket", s.worker)
	}
	late, err := a.authenticate(r.Rank, r.Token)
	if err != nil {
		return err
	}
	m, err := a.newWorker(topo.WorkerID(r.Rank))
	if err != nil {
		return err
	}
	size, generation, err := a.admit(m, s.conn, late)
	if err != nil {
		m.close()
		return err
	}
	s.worker, s.joined = m.id, true
	if a.cfg.OnJoin != nil {
		a.cfg.OnJoin(r.Rank, r.Client)
	}
	reply := &api.JoinReply{Job: a.cfg.Job, Host: a.Host(), Rank: r.Rank,
		Size: size, Generation: generation,
		Slots: arena.Slots, SlotBytes: arena.SlotBytes, SpinUS: int(patience / time.Microsecond),
		Crowded: a.workersOnHost() > runtime.NumCPU()}
	if a.network == nil {
		reply.PieceBytes, reply.PiecesOpen = collective.PieceBytes, collective.PiecesOpen
	}
	if late {
		reply.Late, reply.Rank, reply.Size, reply.Generation = true, 0, 1, 0
	}
	return s.reply(reply, m.block.FD(), m.rings.FD(), m.bell.FD())
}

// newWorker makes a worker that joins, with its control block and bells, on the session's
// goroutine. The caller closes the worker, unless admit takes it.
func (a *Agent) newWorker(w topo.WorkerID) (*worker, error) {
	block, err := arena.NewSegment(fmt.Sprintf("control-%d", w), arena.ControlBytes)
	if err != nil {
		return nil, err
	}
	bell, err := arena.NewPolledBell()
	if err != nil {
		block.Close()
		return nil, err
	}
	rings, err := a.engine.bells.NewBell()
	if err != nil {
		block.Close()
		bell.Close()
		return nil, err
	}
	return &worker{id: w, block: block, control: arena.InitControl(block.Mem, int(w)), bell: bell,
		rings: rings, segments: map[uint32]*arena.Segment{}, results: map[uint32]*result{}}, nil
}

// serveSegment makes a segment of n bytes for the worker, and answers with its file descriptor.
// With later its pages are made while the worker goes on, by a goroutine beside the session.
func (s *session) serveSegment(n int64, later bool) error {
	if n <= 0 {
		return &collective.FieldError{Field: "bytes",
			Problem: fmt.Sprintf("%d: a segment needs at least one byte", n)}
	}
	segment := arena.NewSegment
	if later {
		segment = arena.NewLateSegment
	}
	seg, err := segment(fmt.Sprintf("arena-%d", s.worker), n, s.agent.memoryNodes(s.conn.PID)...)
	if err != nil {
		return err
	}
	s.lastSeg++
	id := s.lastSeg
	if err := s.agent.engine.runAndWait(func() {
		s.agent.engine.byID[s.worker].segments[id] = seg
	}); err != nil {
		seg.Close()
		return err
	}
	if later {
		s.agent.group.Go("memory", func(ctx context.Context) error {
			for ctx.Err() == nil && seg.Fill() {
			}
			return nil
		})
	}
	return s.reply(&api.SegmentReply{ID: id, Bytes: int64(len(seg.Mem))}, seg.FD())
}

// serveFree takes a segment or a shared result from the worker, and answers. The memory is freed
// when no open call uses it any more.
func (s *session) serveFree(id uint32) error {
	known := false
	err := s.agent.engine.runAndWait(func() {
		m := s.agent.engine.byID[s.worker]
		if seg := m.segments[id]; seg != nil {
			delete(m.segments, id)
			m.dying, known = append(m.dying, seg), true
		}
		if r := m.results[id]; r != nil {
			delete(m.results, id)
			m.dying, known = append(m.dying, r), true
		}
	})
	if err != nil {
		return err
	}
	if !known {
		return &collective.FieldError{Field: "id",
			Problem: fmt.Sprintf("%d is no segment of rank %d", id, s.worker)}
	}
	return s.reply(&api.FreeReply{ID: id})
}

// serveGroup asks the head for a group of the ranks that the worker lists, waits for it, and
// answers. A request that is made again, with the same serial, has the same answer: the worker may
// not have got it, and another group would not be that of the other members.
func (s *session) serveGroup(r *api.GroupRequest) error {
	for _, before := range s.groups {
		if before.Serial == s.serial {
			return s.reply(before)
		}
	}
	g, err := s.agent.requestGroup(s.worker, r.Ranks, r.View)
	if err != nil {
		return err
	}
	reply := &api.GroupReply{ID: uint32(g.ID), Rank: g.Self, Size: g.Size}
	if s.serial != 0 {
		s.groups = append(s.groups[max(0, len(s.groups)-mostGroupsKept+1):], reply)
	}
	return s.reply(reply) // which sets its serial
}

// serveWithdraw has the head take a call of the worker back, if it still waits for others, and
// answers. What the worker posts after the answer comes to the head later.
func (s *session) serveWithdraw(r *api.WithdrawRequest) error {
	e := s.agent.engine
	if err := e.runAndWait(func() {
		e.driver.runInput(func() {
			e.takeCalls(e.byID[s.worker]) // the call may not have been seen yet
			e.driver.head.WithdrawCall(s.worker, r.Ticket)
		})
	}); err != nil {
		return err
	}
	return s.reply(&api.WithdrawReply{})
}

// serveData states for the worker what data the job trains on, and answers. Where the request has a
// cursor, of a checkpoint, the job goes on there; else at the beginning. Whether what a lost worker
// leaves is a step of its own (Apart) follows from the request and not from the checkpoint.
func (s *session) serveData(r *api.DataRequest) error {
	d, err := cursor.New(r.Samples, r.Batch, r.Seed, r.Shuffle)
	if err != nil {
		return &collective.FieldError{Field: "samples", Problem: err.Error()}
	}
	levers, err := setting.BatchLevers(r.Batch, r.BatchRange)
	if err != nil {
		return &collective.FieldError{Field: "batch_range", Problem: err.Error()}
	}
	if len(r.Cursor) > 0 {
		place, err := cursor.Parse(r.Cursor)
		if err == nil && !place.SameData(d) &&
			!(place.SameSamples(d) && levers.Batch.Contains(place.Batch)) {
			err = fmt.Errorf("it is a place in %s, and the program trains on %s: give it the "+
				"data, the batch and the seed with which the checkpoint was written",
				place.Describe(), d.Describe())
		}
		if err == nil && place.Round > 1 && r.Sync == "" {
			err = fmt.Errorf("it is a place in rounds of %d steps, and the program averages in "+
				"every step", place.Round)
		}
		if err != nil {
			return &collective.FieldError{Field: "cursor", Problem: err.Error()}
		}
		d = place
	}
	at := setting.Setting{Rate: r.Rate, Save: r.SaveSteps, Sync: r.Synced}
	at = at.WithPeople(r.People)
	if err := at.Validate(); err != nil {
		return &collective.FieldError{Field: "rate", Problem: err.Error()}
	}
	synced, err := setting.SyncLevers(r.Sync, r.Round, r.Auto)
	if err != nil {
		return &collective.FieldError{Field: "sync", Problem: err.Error()}
	}
	if err := synced.CheckResumed(r.Synced); err != nil {
		return &collective.FieldError{Field: "synced", Problem: err.Error()}
	}
	levers.Sync, levers.Round, levers.Auto = synced.Sync, synced.Round, synced.Auto
	levers.Save, d.Apart = r.Save, r.Apart
	if err := s.agent.setData(s.worker, d, at, levers); err != nil {
		return err
	}
	return s.reply(&api.DataReply{})
}
