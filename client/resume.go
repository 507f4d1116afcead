package client

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/shoal-ml/shoal/checkpoint/snapshot"
	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/data/cursor"
	"github.com/shoal-ml/shoal/internal/plural"
	"github.com/shoal-ml/shoal/tensor"
)

// How a loop goes on from a checkpoint, and how its state is described in one. The methods of
// Trainer in this file run on the goroutine of the loop; the functions without a receiver are pure.

// numpyTypes names, by element type, the NumPy type of the array that a Python program makes of a
// tensor of a checkpoint. NumPy has no bf16: such a tensor becomes one of torch.
var numpyTypes = map[tensor.DType]string{tensor.F64: "<f8", tensor.F32: "<f4", tensor.F16: "<f2",
	tensor.I64: "<i8", tensor.I32: "<i4", tensor.U8: "|u1"}

// itemNote says in a checkpoint that a part of the state is a tensor, and what Python makes of it.
type itemNote struct {
	Item  int    `json:"item"`  // number of the tensor in the checkpoint, from 0
	Kind  string `json:"kind"`  // "numpy" or "torch"
	DType string `json:"dtype"` // name of the element type in that library
	Shape []int  `json:"shape"` // dimensions
}

// describeState returns the state as a checkpoint of this moment describes it, without its
// elements.
func (t *Trainer) describeState() *snapshot.State {
	place, err := t.cursor.AppendBinary(nil)
	if err != nil {
		panic("client: " + err.Error()) // between two steps nothing is left over, or what fits
	}
	s := &snapshot.State{Step: t.cursor.Step, Cursor: place, Workers: t.job.size}
	if t.checkpoints != nil {
		s.People = t.checkpoints.people
	}
	notes := map[string]itemNote{}
	for i, x := range t.state {
		n := len(x.bytes) / x.dtype.Size()
		note := itemNote{i, "numpy", numpyTypes[x.dtype], []int{n}}
		if x.dtype == tensor.BF16 {
			note.Kind, note.DType = "torch", "bfloat16"
		}
		notes[x.Name] = note
		s.Tensors = append(s.Tensors,
			snapshot.Tensor{Name: snapshot.PlainName(x.Name), DType: x.dtype,
				Shape: tensor.Shape{n}})
	}
	s.Notes, err = json.Marshal(notes)
	if err != nil {
		panic("client: " + err.Error()) // strings and numbers always marshal
	}
	return s
}

// resume reads the newest checkpoint that is whole, if there is one, into the state, and goes on
// from there. Damaged ones are set aside. All workers call it together. It blocks while they read.
// It is nil also where there is no checkpoint.
func (t *Trainer) resume(ctx context.Context) error {
	c := t.checkpoints
	source := t.job.newSource(c.folder)
	var damaged []snapshot.Attempt
	looker := 0 // the rank that looks for checkpoints and speaks for all
	for {
		var chosen *snapshot.Attempt
		var err error
		if chosen, looker, err = t.newestCheckpoint(ctx, source, len(damaged), looker); err != nil {
			return err
		}
		if len(damaged) == 0 { // now, because what earlier workers left is removed
			if err := c.writer.try(c.folder); err != nil {
				return fmt.Errorf("client: %w", err)
			}
		}
		if chosen == nil {
			break
		}
		found, err := t.readCheckpoint(ctx, source, *chosen)
		if err = errors.Join(err, source.done()); err != nil {
			return err
		}
		if found == nil {
			damaged = append(damaged, *chosen)
			continue
		}
		if t.job.rank == looker {
			for _, bad := range damaged {
				if err := source.setAside(bad); err != nil {
					return err
				}
			}
			c.folder.Log(fmt.Sprintf("goes on from the checkpoint of step %d in %s, of %s, with %d",
				chosen.Step, c.folder.Root, plural.Of(found.State.Workers, "worker"), t.job.size))
		}
		return t.continueFrom(found)
	}
	if len(damaged) > 0 {
		return fmt.Errorf("client: none of the %d checkpoints in %s can be used; what is wrong "+
			"with each stands above. Repair one, or name another folder to start from the "+
			"beginning",
			len(damaged), c.folder.Root)
	}
	return nil
}

// newestCheckpoint returns the newest checkpoint but for `tried` newer ones; nil when there is
// none. It returns also the rank that has looked for it: looker, or the first rank after looker
// that is not lost. All workers call it together, and wait for that rank. It sets
// checkpoints.shared.
func (t *Trainer) newestCheckpoint(ctx context.Context, source source, tried,
	looker int) (*snapshot.Attempt,
	int, error) {
	const none, one = 1, 2
	for ; ; looker++ {
		said := []int64{0, 0, 0, 0} // what there is, step, seed, and the seed that all workers have
		if t.job.rank == looker {
			a, found, err := source.newest(tried)
			if err != nil {
				return nil, looker, fmt.Errorf("client: looking for checkpoints: %w", err)
			}
			said[0], said[3] = none, int64(drawSeed())
			if found {
				said[0], said[1], said[2] = one, int64(a.Step), int64(a.Seed)
			}
		}
		if err := Broadcast(ctx, t.job, said, looker); err != nil {
			return nil, looker, err
		}
		t.checkpoints.shared = uint64(said[3])
		switch said[0] {
		case none:
			return nil, looker, nil
		case one:
			return &snapshot.Attempt{Step: uint64(said[1]), Seed: uint64(said[2])}, looker, nil
		}
		// The looker was lost before it had looked, and another took its part with nothing to say.
	}
}

// errOther means that a checkpoint is whole, and of another program.
var errOther = errors.New("client: the newest checkpoint is of another program")

// errElsewhere means that another worker can say what is wrong with a checkpoint.
var errElsewhere = errors.New("another worker says what is wrong")

// readCheckpoint reads all of a checkpoint into the state. Each worker compares its share of the
// hashes, and all of them agree on what they have seen; nil when it is proved to be damaged. With
// any other error all of them fail. All workers call it together. The caller calls source.done
// after it, whatever it returns.
func (t *Trainer) readCheckpoint(ctx context.Context, source source,
	a snapshot.Attempt) (*snapshot.Sealed,
	error) {
	folder, unread := source.fetch(a)
	turn, turns := t.job.rank, t.job.size
	for {
		var s *snapshot.Sealed
		compared, err := 0, unread
		if err == nil {
			s, compared, err = t.readAndCompare(ctx, folder, a.Step, turn, turns)
		}
		said := []int64{0, 0, int64(compared)} // damaged, not usable here, compared
		switch {
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case errors.Is(err, snapshot.ErrDamaged):
			t.checkpoints.folder.Log(
				fmt.Sprintf("checkpoint of step %d cannot be used: %v; the one before it is tried",
					a.Step, err))
			said[0] = 1
		case errors.Is(err, errOther): // as all workers find
			said[1] = 1
		case err != nil:
			// before the others know: a launcher ends all workers with the first that fails
			t.checkpoints.folder.Log(fmt.Sprintf("checkpoint of step %d cannot be read: %v", a.Step,
				err))
			said[1] = 1
		}
		if failed := AllReduce(ctx, t.job, said, collective.Sum); failed != nil {
			return nil, failed
		}
		switch {
		case said[0] > 0:
			return nil, nil
		case errors.Is(err, errOther):
			return nil, err
		case said[1] > 0:
			return nil, fmt.Errorf("client: the checkpoint of step %d in %s cannot be read: %w; "+
				"it stays as it is: start again when that is mended, or move it elsewhere to go "+
				"on from the one before", a.Step, t.checkpoints.folder.Root,
				cmp.Or(err, errElsewhere))
		case said[2] >= int64(s.Blocks):
			return s, nil
		}
		turn, turns = 0, 1 // a worker was lost that had compared a share
	}
}

// readAndCompare reads a checkpoint into the state, and compares every turns-th of its blocks with
// its hash, beginning with number turn. It returns how many blocks it compared. It blocks for the
// reading. The error wraps errOther where the checkpoint is another program's.
func (t *Trainer) readAndCompare(ctx context.Context, folder snapshot.Folder, step uint64, turn,
	turns int) (*snapshot.Sealed, int, error) {
	s, err := folder.Open(step)
	if err != nil {
		return nil, 0, err
	}
	into, err := t.matchTensors(s.State)
	if err != nil {
		return nil, 0, fmt.Errorf("%w: that of step %d in %s: %w", errOther, step,
			t.checkpoints.folder.Root, err)
	}
	compared, err := s.Read(ctx, into, turn, turns)
	return s, compared, err
}

// matchTensors returns the memory of this program's state for each tensor of a checkpoint; an
// error, where the checkpoint is of another program. It reads nothing into the memory.
func (t *Trainer) matchTensors(s *snapshot.State) (into [][]byte, err error) {
	place, err := cursor.Parse(s.Cursor)
	switch {
	case err != nil:
		return nil, err
	case !t.mayHave(place):
		return nil, fmt.Errorf("it is of a job with %d samples, %d a step, seed %d, this one "+
			"has %d, %d, %d: name another folder, or train on the same",
			place.Samples, place.Batch, place.Seed, t.cursor.Samples, t.cursor.Batch, t.cursor.Seed)
	case len(s.Tensors) != len(t.state):
		return nil, fmt.Errorf("it has %d tensors, this program %d", len(s.Tensors), len(t.state))
	}
	for _, x := range s.Tensors {
		i := slices.IndexFunc(t.state, func(mine State) bool {
			return snapshot.PlainName(mine.Name) == x.Name && mine.dtype == x.DType &&
				len(mine.bytes) == x.Bytes()
		})
		if i < 0 {
			return nil, fmt.Errorf("it has %s, %v %v, for which this program has no memory", x.Name,
				x.DType, x.Shape)
		}
		into = append(into, t.state[i].bytes)
	}
	var notes map[string]any
	if err := json.Unmarshal(s.Notes, &notes); err != nil {
		return nil, err
	}
	for name, note := range notes {
		if !hasOnlyTensors(note) {
			return nil, fmt.Errorf(
				"it has values in %s that are no arrays: only a Python program can take them over",
				name)
		}
	}
	return into, nil
}

// hasOnlyTensors reports whether a part of the state, as Python describes it, is made of tensors
// alone.
func hasOnlyTensors(note any) bool {
	switch note := note.(type) {
	case []any:
		return !slices.ContainsFunc(note, func(inner any) bool { return !hasOnlyTensors(inner) })
	case map[string]any:
		if _, item := note["item"]; item {
			return true
		}
		if list, tuple := note["tuple"]; tuple {
			return hasOnlyTensors(list)
		}
		pairs, dict := note["dict"].([]any)
		return dict && !slices.ContainsFunc(pairs, func(pair any) bool {
			p, ok := pair.([]any)
			return !ok || len(p) != 2 || !hasOnlyTensors(p[1])
		})
	}
	return false
}

// continueFrom sets the place in the data, and when the next checkpoint is due, from a checkpoint
// whose tensors are read, and tells the agent. It waits for the agent's answer.
func (t *Trainer) continueFrom(s *snapshot.Sealed) error {
	place, err := cursor.Parse(s.State.Cursor)
	if err != nil {
		return err
	}
	c := t.checkpoints
	var own map[string]json.RawMessage
	if json.Unmarshal(s.Own[0], &own) == nil {
		_, _ = c.adoptSteps(own) // some programs say nothing of it
	}
	c.people = s.State.People
	t.cursor, c.next, c.last, c.lookedAt = place, place.Step+max(c.steps, 1), place.Step, place.Step
	c.begun = time.Now()
	c.looked = c.begun
	if place.Committed() == 0 {
		return nil
	}
	return t.declareData(place, s.State.Cursor)
}
