package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/fabric/arena"
	"github.com/shoal-ml/shoal/tensor"
)

// How the state of a job gets to a worker that joins. The methods of Trainer in this file run on
// the goroutine of the loop, and wait for the other workers where they make calls.

// State is memory that is the same on every worker after every step. It stays the program's; the
// goroutine of the loop alone reads and writes it here, in Next.
type State struct {
	Name  string       // what it is called in checkpoints; the same on every worker
	bytes []byte       // the memory of the slice, not a copy
	dtype tensor.DType // type of the elements
}

// StateOf returns a State that is the memory of a slice. A worker that joins receives into it, so
// it must have its final length.
func StateOf[T Element](name string, x []T) State { return State{name, bytesOf(x), dtypeOf[T]()} }

// stateTag marks the transfers of docs/formats/arena.md, section 5.
const stateTag = 0xE17E

// stateItem is one State in the header of the job's state.
type stateItem struct {
	Name  string `json:"name"`
	Bytes int    `json:"bytes"`
}

// stateHeader goes to the workers that join before the state itself, as JSON: what the state is
// made of, and notes, which are those of checkpoints.
type stateHeader struct {
	Step  uint64      `json:"step"` // number of steps that are committed
	Items []stateItem `json:"items"`
	Notes any         `json:"notes"` // what checkpoints.joinerNotes returns, or empty
}

// encodeHeader returns this worker's stateHeader in JSON. All methods of Trainer here are for the
// goroutine of the loop, in Next.
func (t *Trainer) encodeHeader() []byte {
	h := stateHeader{Step: t.cursor.Step, Notes: struct{}{}}
	if t.checkpoints != nil {
		h.Notes = t.checkpoints.joinerNotes()
	}
	for _, s := range t.state {
		h.Items = append(h.Items, stateItem{s.Name, len(s.bytes)})
	}
	b, err := json.Marshal(h)
	if err != nil {
		panic("client: " + err.Error()) // strings and numbers always marshal
	}
	return b
}

// errNoState means that a member is gone that had to give a part of the state.
var errNoState = errors.New("client: a member was lost while it gave the state of the job")

// enterJob makes a late worker a member, which blocks until the job admits it, and receives the
// state. It asks again when a member is lost that gives a part of it. It is nil also where the
// worker is released before it is a member.
func (t *Trainer) enterJob(ctx context.Context) error {
	for {
		h := &Handle{}
		if err := t.askToEnter(ctx, h); err != nil {
			return err
		}
		if err := h.Wait(ctx); err != nil {
			return err
		}
		t.job.calls.changedSinceLastCall()
		if err := t.adoptView(); err != nil || t.released {
			return err
		}
		err := t.receiveState(ctx)
		if err == nil && len(t.state) == 0 {
			fmt.Fprintln(os.Stderr, "shoal: this worker has joined a job that trains already, "+
				"and has got no state from the others, because none is given to client.Train: "+
				"if the loop changes any, this worker's differs now; give it as client.StateOf, "+
				"on every worker")
		}
		var failed *CallError
		if !errors.Is(err, errNoState) && !(errors.As(err, &failed) && failed.Lost) {
			return err
		}
	}
}

// askToEnter posts the call, with h as its handle, that is complete when this worker is a member.
// It does not wait for that, but may block as calls.submit does.
func (t *Trainer) askToEnter(ctx context.Context, h *Handle) error {
	k := t.job.calls
	if err := k.beginUse(); err != nil {
		return err
	}
	defer k.endUse()
	return k.submit(ctx, &arena.Descriptor{Kind: arena.KindEnter}, h)
}

// receiveState takes the state from the old members into t.state: first its header, then the pieces
// of each. It blocks until all is there. The error is errNoState or wraps a CallError with Lost
// when a member was lost that had to give a part.
func (t *Trainer) receiveState(ctx context.Context) error {
	mine := t.encodeHeader()
	theirs, err := t.shareHeader(ctx, nil)
	if err != nil {
		return fmt.Errorf("client: entering the job: %w", err)
	}
	if len(bytes.Trim(theirs, "\x00")) == 0 { // of a member that had none
		return errNoState
	}
	if err := t.adoptHeader(theirs, mine); err != nil {
		return err
	}
	err = t.transferState(func(int) bool { return true }, func(p *piece) {
		p.calls = append(p.calls,
			startCall(ctx, t.job, collective.Recv, collective.None, p.giver, nil, p.staged,
				[]Option{Tag(stateTag)}))
	}, func(p *piece) error {
		if err := p.calls[0].Wait(ctx); err != nil {
			return err
		}
		rest := p.staged
		t.forEachItem(p, func(memory []byte) { rest = rest[copy(memory, rest):] })
		return nil
	})
	if err != nil {
		return fmt.Errorf("client: receiving the state of the job: %w", err)
	}
	return nil
}

// adoptHeader returns an error if the header of the others' state differs from this worker's own,
// and takes over the notes.
func (t *Trainer) adoptHeader(theirs, mine []byte) error {
	var notes map[string]json.RawMessage
	a, b := stateHeader{Notes: &notes}, stateHeader{}
	if err := json.Unmarshal(theirs, &a); err != nil {
		return fmt.Errorf("client: the header of the job's state: %w", err)
	}
	if err := json.Unmarshal(mine, &b); err != nil {
		return err
	}
	if fmt.Sprint(a.Items) != fmt.Sprint(b.Items) {
		return fmt.Errorf("client: the job's state is %v, this worker has room for %v: every "+
			"worker must run the same program", a.Items, b.Items)
	}
	if t.checkpoints != nil {
		return t.checkpoints.adoptNotes(notes)
	}
	return nil
}

// giveState hands this rank's pieces of the state to the new members. It blocks until they have
// them: the state may change then, and no step could end without them anyway.
func (t *Trainer) giveState(ctx context.Context) error {
	if _, err := t.shareHeader(ctx, t.encodeHeader()); err != nil {
		return err
	}
	return t.transferState(func(giver int) bool { return giver == t.job.rank }, func(p *piece) {
		rest := p.staged
		t.forEachItem(p, func(memory []byte) { rest = rest[copy(rest, memory):] })
		for joiner := t.job.size - t.joined; joiner < t.job.size; joiner++ {
			p.calls = append(p.calls,
				startCall(ctx, t.job, collective.Send, collective.None, joiner, p.staged, nil,
					[]Option{Tag(stateTag)}))
		}
	}, func(p *piece) error {
		for _, h := range p.calls {
			// A joiner that is gone needs it no more, and one that asks for something else is told
			// so itself.
			if err := h.Wait(ctx); err != nil && !errors.As(err, new(*CallError)) {
				return err
			}
		}
		return nil
	})
}

// shareHeader broadcasts the header from rank 0 to all, and returns it. All old members have the
// same, so that the loss of rank 0 changes nothing where one of them takes its part. It blocks
// until rank 0 has called it. mine is nil on a new member, and else it is the memory of the
// result. A result that is empty, or zero throughout, is of a lost rank 0 whose part fell to a
// member that has no header.
func (t *Trainer) shareHeader(ctx context.Context, mine []byte) ([]byte, error) {
	length := []int64{int64(len(mine))}
	if err := Broadcast(ctx, t.job, length, 0); err != nil {
		return nil, err
	}
	if length[0] == 0 {
		return nil, nil
	}
	if mine == nil {
		if length[0] < 0 || length[0] > 1<<30 {
			return nil, fmt.Errorf("client: a header of %d bytes", length[0])
		}
		mine = make([]byte, length[0])
	}
	return mine, Broadcast(ctx, t.job, mine, 0)
}
