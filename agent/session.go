package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"time"

	"github.com/shoal-ml/shoal/api"
	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/data/cursor"
	"github.com/shoal-ml/shoal/fabric/arena"
	"github.com/shoal-ml/shoal/internal/strict"
	"github.com/shoal-ml/shoal/internal/version"
	"github.com/shoal-ml/shoal/topo"
)

// session is the conversation with one worker on its control socket.
type session struct {
	agent   *Agent
	conn    *arena.Conn
	worker  topo.WorkerID
	joined  bool
	serial  uint64 // of the request that is served
	lastSeg uint32
	reads   *source // what was fetched for it
}

// serve answers until the worker leaves or its socket closes.
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
		var r api.Request
		err = strict.JSON(b, &r)
		s.serial = r.Serial
		if err != nil {
			s.refuse(fmt.Errorf("a message that is no request: %w", err))
			continue
		}
		if r.Type == api.TypeLeave {
			s.agent.leave(s.worker, s.joined)
			return
		}
		if err := s.answer(&r); err != nil {
			s.refuse(err)
		}
	}
}

// refuse sends an error; one that cannot be sent means that the worker is gone, which Receive will
// tell.
func (s *session) refuse(err error) {
	reply := api.Reply{Type: api.TypeError, Error: err.Error()}
	var field *collective.FieldError
	if errors.As(err, &field) {
		reply.Field = field.Field
	}
	_ = s.reply(reply)
}

// reply answers the request that is served.
func (s *session) reply(r api.Reply, fds ...int) error {
	r.Serial = s.serial
	return s.conn.Send(r, fds...)
}

func (s *session) answer(r *api.Request) error {
	switch {
	case r.Type == api.TypeJoin:
		return s.join(r)
	case !s.joined:
		return fmt.Errorf("%q before join: the first message must be join", r.Type)
	}
	switch r.Type {
	case api.TypeSegment:
		return s.segment(r.Bytes, r.Later)
	case api.TypeShared:
		return s.shared(r)
	case api.TypeFree:
		return s.free(r.ID)
	case api.TypeGroup:
		return s.group(r.Ranks)
	case api.TypeUngroup:
		s.agent.ungroup(s.worker, topo.GroupID(r.ID))
		return nil
	case api.TypeData:
		return s.data(r)
	case api.TypeSave:
		return s.save(r.Part)
	case api.TypeSaved:
		return s.saved(r.Wait)
	case api.TypeResume:
		return s.resume(r.Resume)
	case api.TypeLoad:
		return s.load(r.Load)
	case api.TypeState:
		return s.state(r)
	case api.TypeShape:
		return s.shape()
	case api.TypeBucket:
		return s.bucket(r)
	case api.TypeReport:
		s.agent.report(s.worker, r.Metrics)
		return nil
	}
	return &collective.FieldError{Field: "type",
		Problem: fmt.Sprintf("%q names no message of protocol %d", r.Type, arena.Protocol)}
}

func (s *session) join(r *api.Request) error {
	a := s.agent
	switch {
	case s.joined:
		return fmt.Errorf("rank %d has joined already on this socket", s.worker)
	case r.Protocol != arena.Protocol:
		return fmt.Errorf("the worker (%s, shoal %s) speaks protocol %d, the agent (shoal %s) "+
			"speaks %d: install the same version of shoal on both sides",
			r.Client, r.Version, r.Protocol, version.Version, arena.Protocol)
	}
	late, err := a.seat(r.Rank, r.Token)
	if err != nil {
		return err
	}
	m, err := a.newMember(topo.WorkerID(r.Rank))
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
	reply := api.Reply{Type: api.TypeJoined, Job: a.cfg.Job, Host: a.Host(), Rank: r.Rank,
		Size: size, Generation: generation,
		Slots: arena.Slots, SlotBytes: arena.SlotBytes, SpinUS: int(patience / time.Microsecond),
		Crowded: a.here() > runtime.NumCPU()}
	if a.network == nil {
		reply.PieceBytes, reply.PiecesOpen = collective.PieceBytes, collective.PiecesOpen
	}
	if late {
		reply.Late, reply.Rank, reply.Size, reply.Generation = true, 0, 1, 0
	}
	return s.reply(reply, m.block.FD(), m.rings.FD(), m.bell.FD())
}

func (a *Agent) newMember(w topo.WorkerID) (*worker, error) {
	block, err := arena.NewSegment(fmt.Sprintf("control-%d", w), arena.ControlBytes)
	if err != nil {
		return nil, err
	}
	bell, err := arena.NewPolledBell()
	if err != nil {
		block.Close()
		return nil, err
	}
	rings, err := a.engine.bells.New()
	if err != nil {
		block.Close()
		bell.Close()
		return nil, err
	}
	return &worker{id: w, block: block, control: arena.InitControl(block.Mem, int(w)), bell: bell,
		rings: rings, segments: map[uint32]*arena.Segment{}, results: map[uint32]*result{}}, nil
}

// segment makes memory for the worker. What may come later is made while the worker goes on, and
// asks for other things.
func (s *session) segment(n int64, later bool) error {
	if n <= 0 {
		return &collective.FieldError{Field: "bytes",
			Problem: fmt.Sprintf("%d: a segment needs at least one byte", n)}
	}
	segment := arena.NewSegment
	if later {
		segment = arena.NewLateSegment
	}
	seg, err := segment(fmt.Sprintf("arena-%d", s.worker), n, s.agent.near(s.conn.PID)...)
	if err != nil {
		return err
	}
	s.lastSeg++
	id := s.lastSeg
	if err := s.agent.engine.do(func() {
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
	return s.reply(api.Reply{Type: api.TypeSegment, ID: id, Bytes: int64(len(seg.Mem))}, seg.FD())
}

func (s *session) free(id uint32) error {
	known := false
	err := s.agent.engine.do(func() {
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
	return s.reply(api.Reply{Type: api.TypeFreed, ID: id})
}

func (s *session) group(list []int) error {
	g, err := s.agent.groupOf(s.worker, list)
	if err != nil {
		return err
	}
	return s.reply(api.Reply{Type: api.TypeGroup, ID: uint32(g.ID), Rank: g.Self, Size: g.Size})
}

// data notes what the job trains on, and the place where it goes on.
func (s *session) data(r *api.Request) error {
	d, err := cursor.New(r.Samples, r.Batch, r.Seed, r.Shuffle)
	if err != nil {
		return &collective.FieldError{Field: "samples", Problem: err.Error()}
	}
	if len(r.Cursor) > 0 {
		place, err := cursor.Parse(r.Cursor)
		if err == nil && !place.SameData(d) {
			err = errors.New("it is a place in other data")
		}
		if err != nil {
			return &collective.FieldError{Field: "cursor", Problem: err.Error()}
		}
		d = place
	}
	if err := s.agent.state(s.worker, d); err != nil {
		return err
	}
	return s.reply(api.Reply{Type: api.TypeData})
}
