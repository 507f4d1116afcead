package sched

import (
	"cmp"
	"encoding/json"
	"slices"
)

// asrpt is A-SRPT (Luo, Liu, Lee and Shroff, "Online Scheduling for Distributed Machine Learning
// Training", INFOCOM 2025, arXiv 2501.05563), as far as its abstract says it: a virtual machine
// that works as fast as all slots together does one job after the other, that with the shortest
// remaining processing time first. In the order in which jobs are done there they are started, with
// the slots that they ask for, whatever fits; nothing is taken from a job that runs. Where none
// runs and none is done there, the one starts that will be next. A job that would be slower on the
// hosts that have room than on free ones is held for a while. heavy.go places those with a graph.
var asrpt = Policy{Name: "asrpt",
	About: "in the order in which a single machine of all slots would finish them",
	Share: asrptShare{}}

// asrptShare is the share of asrpt.
type asrptShare struct{}

const (
	// asrptHold is for which part of its predicted time a job is held at most, and asrptSlower how
	// many times longer its steps must be for that than on hosts of which all slots are free.
	asrptHold   = 0.5
	asrptSlower = 1.1
)

// virtual is what asrpt remembers between two decisions, as JSON in the memory of the Machine. It
// belongs to one decision.
type virtual struct {
	Now  int64             // up to when the virtual machine was played
	Left map[JobID]float64 // slot-seconds that it has to do of each job that it is not done with
	Done map[JobID]int64   // when it was done with a job, in milliseconds
}

// Decide implements Share.
func (asrptShare) Decide(v *View, mem []byte) (Decision, []byte) {
	s := virtual{Left: map[JobID]float64{}, Done: map[JobID]int64{}}
	_ = json.Unmarshal(mem, &s) // what is no memory of this policy is none
	again := s.playUntilNow(v)
	want, free := make([]int, len(v.Jobs)), v.Slots
	var done, coming []candidate // whom the virtual machine is done with, and the others
	for i, j := range v.Jobs {
		if want[i] = j.Slots(); want[i] > 0 {
			free -= want[i]
		} else if at, is := s.Done[j.ID]; is {
			done = append(done, candidate{i, j, j.Priority, float64(at)})
		}
	}
	if free < 0 { // a host is leaving: the youngest give way
		free = takeBackFromLast(sortedBy(v, func(*Job) float64 { return 0 }), want, free)
	}
	for i, j := range v.Jobs {
		if n := j.Smallest(); j.standsStill(want[i]) && n <= v.Slots {
			if j.Asked-want[i] <= free {
				n = j.Asked
			}
			if free -= n - want[i]; free >= 0 {
				want[i] = n
			}
		}
	}
	free = max(free, 0)
	for i, j := range v.Jobs {
		if left, is := s.Left[j.ID]; is && want[i] == 0 {
			coming = append(coming, candidate{i, j, j.Priority, left})
		}
	}
	sortCandidates(done)
	sortCandidates(coming)
	if free == v.Slots && len(done) == 0 && len(coming) > 0 {
		done = coming[:1] // the slots are not left idle
	}
	place := v.placement()
	for _, c := range done {
		n := c.job.Asked
		if n > free {
			continue
		}
		since, is := s.Done[c.job.ID]
		if !is {
			since = c.job.Arrived
		}
		until := AddMillis(since, asrptHold*c.job.Seconds(n))
		places, ok := place.choose(c.job, nil, n)
		if ok && until > v.Now && place.slower(c.job, places) > asrptSlower {
			again = earlier(again, until)
			continue
		}
		want[c.index], free = n, free-n
		place.changeTaken(places, 1)
	}
	mem, err := json.Marshal(s)
	if err != nil {
		panic(err)
	}
	return Decision{Want: want, Again: again, Because: func(int) string {
		return "a single machine of all slots is done with it"
	}}, mem
}

// playUntilNow plays the virtual machine up to now, and returns when it is done with the next job;
// 0 = it has none. Of jobs that are gone it forgets those that it is done with: it does the others
// all the same.
func (s *virtual) playUntilNow(v *View) (again int64) {
	there := map[JobID]bool{}
	var coming []*Job // that it does not know, in the order of arrival
	for _, j := range v.Jobs {
		there[j.ID] = true
		_, known := s.Left[j.ID]
		if _, is := s.Done[j.ID]; !known && !is {
			coming = append(coming, j)
		}
	}
	slices.SortStableFunc(coming, func(a, b *Job) int { return cmp.Compare(a.Arrived, b.Arrived) })
	for _, j := range coming {
		s.advance(max(s.Now, min(j.Arrived, v.Now)), v.Slots)
		s.Left[j.ID] = j.Seconds(j.Asked) * float64(j.Asked)
	}
	s.advance(v.Now, v.Slots)
	for id := range s.Done {
		if !there[id] {
			delete(s.Done, id)
		}
	}
	if id, left := s.shortestJob(); id != "" && v.Slots > 0 {
		return max(AddMillis(s.Now, left/float64(v.Slots)), v.Now+1)
	}
	return 0
}

// advance plays the virtual machine up to a time, in milliseconds, with so many slots.
func (s *virtual) advance(to int64, slots int) {
	for s.Now < to {
		id, left := s.shortestJob()
		if id == "" || slots == 0 {
			s.Now = to
			return
		}
		end := max(AddMillis(s.Now, left/float64(slots)), s.Now)
		if end > to {
			s.Left[id] = left - float64(float64(to-s.Now)/1000*float64(slots))
			s.Now = to
			return
		}
		delete(s.Left, id)
		s.Now, s.Done[id] = end, end
	}
}

// shortestJob returns the job of which the virtual machine has the least left to do; "" = none.
func (s *virtual) shortestJob() (best JobID, least float64) {
	for id, left := range s.Left {
		if best == "" || left < least || left == least && id < best {
			best, least = id, left
		}
	}
	return best, max(least, 0)
}
