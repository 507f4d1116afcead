package wire

import (
	"cmp"
	"fmt"

	"github.com/shoal-ml/shoal/data/cursor"
	"github.com/shoal-ml/shoal/head/meshes"
	"github.com/shoal-ml/shoal/setting"
	"github.com/shoal-ml/shoal/topo"
)

// BatchID names what the data plane executes as one, and commits as one: collectives that became
// ready together. A step is never split over batches. Batches are numbered by the head; the number
// of a later head is higher, and no two heads share one.
type BatchID uint64

// NewBatchID returns the number of the batch that is number count, from 1, of the head of a term:
// no two heads give the same one, and later ones are higher.
func NewBatchID(term topo.Generation, count uint64) BatchID {
	return BatchID(uint64(term)<<32 | count)
}

// State is what a job is after an entry of the log.
type State struct {
	// Steps counts the committed steps.
	Steps uint64
	// View has the members that the workers know of; generation 0 = those that the job begins with.
	View topo.View
	// Joined is how many members are new in View.
	Joined int
	// Data is the place in the data that the next step trains on; nil = no worker has stated it.
	Data *cursor.Cursor
	// Elastic says that the job takes steps, so members may come and go.
	Elastic bool
	// AllReleased says why all members were let go; "" = they were not.
	AllReleased string
	// Shape says where the parts of the state are; nil = every member has all of it.
	Shape *meshes.Shape
	// First is the batch that the program states; 0 = no worker has stated data. The batch that
	// counts is that of Data.
	First uint64
	// Setting is how the job trains from the next step on. Its Batch is 0 where the batch is First.
	// Its Size is how many members the job is asked to have, whoever has asked; 0 = the job takes
	// no steps yet, or its members cannot come and go one by one.
	Setting setting.Setting
	// Sized counts the changes of the setting that have brought another size, and those that may
	// have.
	Sized uint64
	// Levers are what the program has opened.
	Levers setting.Levers
	// Trial is the change that is measured; nil = none is.
	Trial *setting.Change
}

// CheckData returns why no worker can state data where the job has this state; nil where one can.
// Where the program has opened the batch, the place of a checkpoint may have another one.
func (s *State) CheckData(data cursor.Cursor) error {
	have := s.Data
	if have == nil || have.SameSamples(data) && (data.Batch == s.First ||
		data.Step > 0 && s.Levers.Batch.Contains(data.Batch)) {
		return nil
	}
	return fmt.Errorf("the job trains on %s; this worker stated %s; every worker must state the "+
		"same", have.WithBatch(cmp.Or(s.First, have.Batch)).Describe(), data.Describe())
}

// OptimizerSteps returns how many optimizer steps the training has made, where they are not as many
// as the commits of the job: it trains in rounds, or goes on from a checkpoint; 0 = as many.
func (s *State) OptimizerSteps() uint64 {
	if s.Data == nil || s.Data.Step == s.Steps {
		return 0
	}
	return s.Data.Step
}

// CheckLevers returns why no worker can open these levers; nil where one can. Who states none
// leaves them to the others.
func (s *State) CheckLevers(levers setting.Levers) error {
	if have := s.Levers.Batch; have.IsOpen() && levers.Batch.IsOpen() && levers.Batch != have {
		return fmt.Errorf("the batch may be %v, this worker stated %v (batch_range); every "+
			"worker must state the same", have, levers.Batch)
	}
	if s.Shape != nil && levers.Sync != "" {
		return fmt.Errorf("sync=%s: this job has a mesh, whose ranks average in every step",
			levers.Sync)
	}
	return s.Levers.CheckSync(levers, s.Steps > 0)
}

// HasStated reports whether the state has what a worker has stated.
func (s *State) HasStated(stated *Stated) bool {
	return s.Data != nil && stated.Data.Step <= s.Data.Step &&
		!s.OpensClosedLevers(stated.Levers) && !s.Shape.NeedsCheckpoint()
}

// OpensClosedLevers reports whether a worker states levers that the job has closed.
func (s *State) OpensClosedLevers(levers setting.Levers) bool {
	return levers.Batch.IsOpen() && !s.Levers.Batch.IsOpen() || levers.Save && !s.Levers.Save ||
		levers.Sync != "" && s.Levers.Sync == ""
}

// OpenLevers opens what a worker states as open. Before the first step, rounds become those that it
// states.
func (s *State) OpenLevers(levers setting.Levers) {
	if levers.Batch.IsOpen() {
		s.Levers.Batch = levers.Batch
	}
	s.Levers.Save = s.Levers.Save || levers.Save
	if s.Levers.Sync == "" {
		s.Levers.Sync, s.Levers.Round = levers.Sync, levers.Round
		s.Levers.Auto = levers.Auto
	}
	if round := s.Setting.WithStated(0, s.Levers).Round; s.Data != nil && s.Data.Round != round {
		data := s.Data.WithRound(round)
		s.Data = &data
	}
}

// Apply makes the state what an entry of the log says of the setting.
func (s *State) Apply(c *Commit) {
	if c.Setting != nil {
		s.Setting, s.Sized = *c.Setting, c.Sized
	}
	if c.Changed { // the workers are told a view, in which nobody is new unless c.View says so
		s.Joined = 0
	}
	if c.Levers != nil {
		s.Levers = *c.Levers
	}
	s.First = cmp.Or(c.First, s.First)
	switch {
	case c.Change == nil:
	case c.Change.Phase.IsEnd():
		s.Trial = nil
	default:
		s.Trial = c.Change
	}
}

// HasSize reports whether the setting says how many members the job is to have: they may come and
// go, one by one.
func (s *State) HasSize() bool { return s.Elastic && s.Shape == nil && s.View.Generation > 0 }
