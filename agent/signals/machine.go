package signals

import (
	"github.com/shoal-ml/shoal/data/cursor"
	"github.com/shoal-ml/shoal/head"
	"github.com/shoal-ml/shoal/sense"
	"github.com/shoal-ml/shoal/sense/machine"
	"github.com/shoal-ml/shoal/sense/steps"
	"github.com/shoal-ml/shoal/topo"
)

// How busy the machines of the job are, and how much of their memory its workers need. The methods
// of Signals in this file run on the engine's thread, and change nothing but what Signals keep.

// machines is what a host knows of its machine, and on the head of those of all hosts.
type machines struct {
	told    *machine.Note // to the head with the next note; nil = nothing
	watch   machine.Watch // of all hosts; empty where this host does not lead
	alike   int           // steps so far with the same members, batch and shares as the newest
	samples float64       // mean of those steps, by worker of this host; 0 = not known, or too few
	// devices are the GPUs of the workers of this host, and what these need of their memory, as of
	// the generation.
	devices    map[topo.WorkerID]machine.Memory
	generation topo.Generation
}

// enoughSteps is how many steps workers make with a batch before what they need of memory counts.
const enoughSteps = 2

// countSamplesOfAlikeSteps counts a step that was made as the next one is, and begins anew where
// the next one differs. After enoughSteps it sets how many samples a worker of this host has, for
// what is told of memory. workers are those of this host with their ranks in both; nil = not known.
func (s *Signals) countSamplesOfAlikeSteps(a *head.Apply, next sense.StepSample,
	workers []steps.Worker) {
	m, u := &s.machines, &s.under
	if u.Batch != next.Batch || u.Deal != next.Deal || u.Generation != next.Generation {
		m.alike, m.samples = 0, 0
		return
	}
	m.alike++
	if m.alike < enoughSteps || m.samples > 0 || a.Data == nil {
		return
	}
	whole := cursor.Cursor{Samples: cursor.MaxSamples, Batch: next.Batch, Shares: a.Data.Shares}
	for _, w := range workers {
		m.samples += float64(whole.PartLen(w.Rank, next.Size)) / float64(len(workers))
	}
}

// AddReadings takes in two readings of the machine of this host, which are so many seconds apart.
// The head is told of the newest with the next note.
func (s *Signals) AddReadings(from, to machine.Reading, seconds float64) {
	m := &s.machines
	if s.Blind || s.under.Size == 0 { // the job makes no steps
		return
	}
	var fullest *machine.Memory
	for _, d := range m.devices {
		if fullest == nil || d.Used*fullest.Room > fullest.Used*d.Room {
			fullest = &d
		}
	}
	n := machine.NewNote(from, to, seconds, m.samples, fullest)
	m.told = &n
}

// AddDevice takes in how many bytes of its GPU a worker of this host has needed, of so many that it
// can have. The job is in a state in which the worker has made some steps.
func (s *Signals) AddDevice(w topo.WorkerID, known head.State, used, room float64) {
	m := &s.machines
	rank, is := known.View.Rank(w)
	if !is || known.Data == nil {
		return
	}
	if m.devices == nil || m.generation != known.View.Generation {
		m.devices, m.generation = map[topo.WorkerID]machine.Memory{}, known.View.Generation
	}
	whole := cursor.Cursor{Samples: cursor.MaxSamples, Batch: known.Data.Batch,
		Shares: known.Data.Shares}
	m.devices[w] = machine.Memory{Used: used, Room: room, Device: true,
		Samples: float64(whole.PartLen(int(rank), known.View.Size()))}
}

// MemoryPerWorker returns how many bytes each of so many workers of a host may have, on the head:
// of its GPU, or of the memory of the host; 0 = that is not known.
func (s *Signals) MemoryPerWorker(host string, workers int) (bytes float64) {
	for _, h := range s.machines.watch.Hosts() {
		for _, m := range h.Memory {
			switch {
			case h.Name != host:
			case m.Device: // it comes last, and is the one that counts
				bytes = m.Room
			default:
				bytes = m.Room / float64(workers)
			}
		}
	}
	return bytes
}

// WaitShare returns the part of a step, from 0 to 1, in which all workers of the job, which is in a
// state, wait for the network, on the head; 0 = that is not known.
func (s *Signals) WaitShare(known head.State) float64 {
	if known.Data == nil {
		return 0
	}
	x := s.job.Split(uint64(known.View.Generation), dealOf(&known))
	if !(x.Seconds > 0) {
		return 0
	}
	return min(max(x.Exposed/x.Seconds, 0), 1)
}

// SlowHosts says in words for which hosts of the job, which is in a state, others wait, and why, on
// the head.
func (s *Signals) SlowHosts(known head.State) []string {
	if known.Data == nil {
		return nil
	}
	o := s.observe(known)
	return o.SlowHosts()
}
