package node

import (
	"bytes"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"

	"github.com/shoal-ml/shoal/api"
	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/fabric/arena"
	"github.com/shoal-ml/shoal/internal/version"
	"github.com/shoal-ml/shoal/topo"
)

// session is the conversation with one worker on its control socket.
type session struct {
	agent   *Agent
	conn    *arena.Conn
	rank    topo.Rank
	joined  bool
	lastSeg uint32
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
		d := json.NewDecoder(bytes.NewReader(b))
		d.DisallowUnknownFields()
		if err := d.Decode(&r); err != nil {
			s.refuse(fmt.Errorf("a message that is no request: %w", err))
			continue
		}
		if r.Type == api.TypeLeave {
			s.agent.leave(s.rank, s.joined)
			return
		}
		if err := s.answer(&r); err != nil {
			s.refuse(err)
		}
	}
}

// refuse sends an error; one that cannot be sent means that the worker is gone, which Receive will tell.
func (s *session) refuse(err error) {
	reply := api.Reply{Type: api.TypeError, Rank: int(s.rank), Error: err.Error()}
	var field *collective.FieldError
	if errors.As(err, &field) {
		reply.Field = field.Field
	}
	_ = s.conn.Send(reply)
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
		return s.segment(r.Bytes)
	case api.TypeFree:
		return s.free(r.ID)
	case api.TypeGroup:
		return s.group(r.Ranks)
	case api.TypeReport:
		s.agent.report(s.rank, r.Metrics)
		return nil
	}
	return &collective.FieldError{Field: "type", Problem: fmt.Sprintf("%q names no message of protocol %d", r.Type, arena.Protocol)}
}

func (s *session) join(r *api.Request) error {
	a := s.agent
	switch {
	case s.joined:
		return fmt.Errorf("rank %d has joined already on this socket", s.rank)
	case r.Protocol != arena.Protocol:
		return fmt.Errorf("the worker (%s, shoal %s) speaks protocol %d, the agent (shoal %s) speaks %d: install the same version of shoal on both sides",
			r.Client, r.Version, r.Protocol, version.Version, arena.Protocol)
	case r.Rank < 0 || r.Rank >= len(a.cfg.Tokens):
		return &collective.FieldError{Field: "rank", Problem: fmt.Sprintf("%d is outside 0..%d", r.Rank, len(a.cfg.Tokens)-1)}
	case subtle.ConstantTimeCompare([]byte(r.Token), []byte(a.cfg.Tokens[r.Rank])) != 1:
		return &collective.FieldError{Field: "token", Problem: fmt.Sprintf("not the one of rank %d: a worker gets it in %s from its launcher", r.Rank, api.EnvToken)}
	}
	m, err := newMember(topo.Rank(r.Rank))
	if err != nil {
		return err
	}
	if err := a.admit(m, s.conn); err != nil {
		m.close()
		return err
	}
	s.rank, s.joined = m.rank, true
	if a.cfg.OnJoin != nil {
		a.cfg.OnJoin(r.Rank, r.Client)
	}
	return s.conn.Send(api.Reply{Type: api.TypeJoined, Job: a.cfg.Job, Host: a.host, Rank: r.Rank, Size: len(a.cfg.Tokens), Generation: 1,
		Slots: arena.Slots, SlotBytes: arena.SlotBytes, SpinUS: spinMicros(len(a.cfg.Tokens))}, m.block.FD(), a.engine.bell.FD(), m.bell.FD())
}

// spinMicros is how long workers poll before they park. With more ranks than cores a spinning rank would only keep the one
// that it waits for from running.
func spinMicros(ranks int) int {
	if ranks > runtime.NumCPU() {
		return 0
	}
	return 50
}

func newMember(rank topo.Rank) (*member, error) {
	block, err := arena.NewSegment(fmt.Sprintf("control-%d", rank), arena.ControlBytes)
	if err != nil {
		return nil, err
	}
	bell, err := arena.NewPolledBell()
	if err != nil {
		block.Close()
		return nil, err
	}
	return &member{rank: rank, block: block, control: arena.InitControl(block.Mem, int(rank)), bell: bell, segments: map[uint32]*arena.Segment{}}, nil
}

func (s *session) segment(n int64) error {
	if n <= 0 {
		return &collective.FieldError{Field: "bytes", Problem: fmt.Sprintf("%d: a segment needs at least one byte", n)}
	}
	seg, err := arena.NewSegment(fmt.Sprintf("arena-%d", s.rank), n)
	if err != nil {
		return err
	}
	s.lastSeg++
	id := s.lastSeg
	if err := s.agent.engine.do(func() { s.agent.engine.members[s.rank].segments[id] = seg }); err != nil {
		seg.Close()
		return err
	}
	return s.conn.Send(api.Reply{Type: api.TypeSegment, Rank: int(s.rank), ID: id, Bytes: int64(len(seg.Mem))}, seg.FD())
}

func (s *session) free(id uint32) error {
	known := false
	err := s.agent.engine.do(func() {
		m := s.agent.engine.members[s.rank]
		seg := m.segments[id]
		if known = seg != nil; known {
			delete(m.segments, id)
			m.dying = append(m.dying, seg)
		}
	})
	if err != nil {
		return err
	}
	if !known {
		return &collective.FieldError{Field: "id", Problem: fmt.Sprintf("%d is no segment of rank %d", id, s.rank)}
	}
	return s.conn.Send(api.Reply{Type: api.TypeFreed, Rank: int(s.rank), ID: id})
}

func (s *session) group(list []int) error {
	ranks := make([]topo.Rank, len(list))
	for i, r := range list {
		ranks[i] = topo.Rank(r)
	}
	var (
		id   topo.GroupID
		self int
		err  error
	)
	if e := s.agent.engine.do(func() { id, self, err = s.agent.engine.matcher.Group(s.rank, ranks) }); e != nil {
		return e
	}
	if err != nil {
		return err
	}
	return s.conn.Send(api.Reply{Type: api.TypeGroup, ID: uint32(id), Rank: self, Size: len(ranks)})
}
