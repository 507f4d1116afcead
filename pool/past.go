package pool

// What is kept of jobs that have ended, by their kind: what the next one of the kind is expected to
// take. Machine.end calls learn, when a job has ended.

// Past is what jobs of a kind have taken.
type Past struct {
	Kind   string          `json:"kind"`
	Runs   int             `json:"runs"`   // jobs that have ended well
	Steps  float64         `json:"steps"`  // steps of one, smoothed
	Spread float64         `json:"spread"` // mean deviation of these, smoothed
	Speeds map[int]float64 `json:"speeds"` // steps a second of the last, by number of workers
	// Ends are, of the last jobs that ended well, how the ends that were expected when their slots
	// were last decided were off, and Halves those that were expected half-way from there; the
	// newest last, at most maxEnds.
	Ends   []PastEnd `json:"ends"`
	Halves []PastEnd `json:"halves"`
	Tail   float64   `json:"tail"` // milliseconds from the last step to the end of a job, smoothed
}

// smoothing is the weight of the newest of several values.
const smoothing = 0.3

// learn takes into the past of its kind how a job has ended.
func (m *Machine) learn(e *entry) {
	kind := e.Submission.Kind
	if kind == "" || e.Steps == 0 {
		return
	}
	p := m.past[kind]
	if p == nil {
		p = &Past{Kind: kind, Speeds: map[int]float64{}, Ends: []PastEnd{}, Halves: []PastEnd{}}
		m.past[kind] = p
	}
	if e.State == Ended {
		steps := float64(e.Steps)
		if p.Runs == 0 {
			p.Steps = steps
		}
		off := max(steps-p.Steps, p.Steps-steps)
		p.Spread += float64(smoothing * (off - p.Spread))
		p.Steps += float64(smoothing * (steps - p.Steps))
		p.Runs++
		m.learnEnd(e, p)
	}
	for n, v := range e.Speeds {
		p.Speeds[n] = v
	}
	m.writes[PastKey(m.cfg.Name, kind)] = Write{Value: encodePast(m.cfg.Name, p)}
	m.coreLearnt(kind)
}
