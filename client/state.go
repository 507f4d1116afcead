package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/fabric/arena"
)

// State is memory that is the same on every worker after every step.
type State struct {
	Name  string
	bytes []byte
}

// StateOf makes a State of a slice. A worker that joins receives into it, so it must have its final length.
func StateOf[T Element](name string, x []T) State { return State{name, bytesOf(x)} }

// The transfer of docs/formats/arena.md, section 5.
const (
	stateTag   = 0xE17E
	statePiece = 64 << 20
)

type stateItem struct {
	Name  string `json:"name"`
	Bytes int    `json:"bytes"`
}

type stateHeader struct {
	Step  uint64         `json:"step"`
	Items []stateItem    `json:"items"`
	Notes map[string]any `json:"notes"`
}

func (t *Trainer) header() []byte {
	h := stateHeader{Step: t.cursor.Step, Notes: map[string]any{}}
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

// enter makes a late worker a member, and receives the state. It asks again when a member is lost that gives a part of it.
func (t *Trainer) enter(ctx context.Context) error {
	for {
		h := &Handle{}
		if err := t.job.calls.submit(&arena.Descriptor{Kind: arena.KindEnter}, h); err != nil {
			return err
		}
		if err := h.Wait(ctx); err != nil {
			return err
		}
		t.job.calls.takeChanged()
		if err := t.follow(t.job.follow()); err != nil || t.released {
			return err
		}
		err := t.receive(ctx)
		var failed *CallError
		if !errors.Is(err, errNoState) && !(errors.As(err, &failed) && failed.Lost) {
			return err
		}
	}
}

func (t *Trainer) receive(ctx context.Context) error {
	mine := t.header()
	theirs, err := t.shareHeader(ctx, nil)
	if err != nil {
		return fmt.Errorf("client: entering the job: %w", err)
	}
	if len(bytes.Trim(theirs, "\x00")) == 0 { // of a member that had none
		return errNoState
	}
	if err := sameItems(theirs, mine); err != nil {
		return err
	}
	return t.pieces(t.job.size-t.joined, func(rank, at, n int) error {
		piece, err := t.job.mem.borrow(n)
		if err != nil {
			return err
		}
		defer t.job.mem.giveBack(piece)
		if err := RecvFrom(ctx, t.job, piece, rank, Tag(stateTag)); err != nil {
			return fmt.Errorf("client: receiving the state of the job: %w", err)
		}
		t.within(at, n, func(memory []byte) { piece = piece[copy(memory, piece):] })
		return nil
	})
}

func sameItems(theirs, mine []byte) error {
	var a, b stateHeader
	if err := json.Unmarshal(theirs, &a); err != nil {
		return fmt.Errorf("client: the header of the job's state: %w", err)
	}
	if err := json.Unmarshal(mine, &b); err != nil {
		return err
	}
	if fmt.Sprint(a.Items) != fmt.Sprint(b.Items) {
		return fmt.Errorf("client: the job's state is %v, this worker has room for %v: every worker must run the same program", a.Items, b.Items)
	}
	return nil
}

// give hands this rank's part of the state to the new members. It does not wait for them: the state is copied once.
func (t *Trainer) give(ctx context.Context) error {
	if _, err := t.shareHeader(ctx, t.header()); err != nil {
		return err
	}
	old := t.job.size - t.joined
	return t.pieces(old, func(rank, at, n int) error {
		if rank != t.job.rank {
			return nil
		}
		for joiner := old; joiner < t.job.size; joiner++ {
			if err := t.send(joiner, at, n); err != nil {
				return err
			}
		}
		return nil
	})
}

// send copies a piece of the state into the arena, as it is now, and starts to send the copy.
func (t *Trainer) send(to, at, n int) error {
	piece, err := t.job.mem.borrow(n)
	if err != nil {
		return err
	}
	rest := piece
	t.within(at, n, func(memory []byte) { rest = rest[copy(rest, memory):] })
	h := start(t.job, collective.Send, collective.None, to, piece, nil, []Option{Tag(stateTag)})
	h.finish = func() { t.job.mem.giveBack(piece) }
	t.sends = append(t.sends, h)
	return nil
}

// shareHeader broadcasts the header. All old members have the same, so that the loss of rank 0 changes nothing.
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

// pieces calls f for every piece of the state: the old rank that sends it, where it begins, and its length.
func (t *Trainer) pieces(old int, f func(rank, at, n int) error) error {
	total := 0
	for _, s := range t.state {
		total += len(s.bytes)
	}
	for rank := range old {
		for at, end := rank*total/old, (rank+1)*total/old; at < end; at += statePiece {
			if err := f(rank, at, min(end-at, statePiece)); err != nil {
				return err
			}
		}
	}
	return nil
}

// within calls f for the memory of bytes [at, at+n) of the state, item by item.
func (t *Trainer) within(at, n int, f func(memory []byte)) {
	for _, s := range t.state {
		if from, to := max(at, 0), min(at+n, len(s.bytes)); from < to {
			f(s.bytes[from:to])
		}
		at -= len(s.bytes)
	}
}

// reap frees the copies that have arrived.
func (t *Trainer) reap(ctx context.Context) {
	t.sends = slices.DeleteFunc(t.sends, func(h *Handle) bool {
		done := h.Done()
		if done {
			_ = h.Wait(ctx) // a joiner that is gone needs it no more
		}
		return done
	})
}

// settle waits for what is still on its way to joiners; a joiner that is gone needs it no more.
func (t *Trainer) settle(ctx context.Context) {
	for _, h := range t.sends {
		_ = h.Wait(ctx)
	}
	t.sends = nil
}
