package predict

// Resource is a resource of a host that work can wait for.
type Resource int

// The resources, in the order of the digits of Levels.
const (
	NIC Resource = iota
	Memory
	Disk
	CPU
	Resources int = iota // the number of resources
)

// String returns the name of the resource, in lower case.
func (r Resource) String() string { return [...]string{"nic", "memory", "disk", "cpu"}[r] }

// Use is how much of each resource of a host is in use, as a part of what the host has; NaN = it
// was not measured.
type Use [Resources]float64

// Levels say how close each resource of a host is to its limit, from 0 to 4: the digits of Lube
// (Wang and Li 2017). -1 = the resource was not measured.
type Levels [Resources]int

// Saturated is the level from which on a resource is a bottleneck.
const Saturated = 3

// levelOf returns the level of a use.
func levelOf(use float64) (level int) {
	for _, limit := range [...]float64{0.5, 0.7, 0.85, 0.95} {
		if use >= limit {
			level++
		}
	}
	return level
}

// String returns a digit for each resource, such as "0204": network, memory, disk, processor. What
// was not measured is "-".
func (l Levels) String() string {
	var text [Resources]byte
	for r, level := range l {
		text[r] = '-'
		if level >= 0 {
			text[r] = byte('0' + level)
		}
	}
	return string(text[:])
}

// Bottleneck is a resource that holds up the work of its host.
type Bottleneck struct {
	Resource  Resource
	Use       float64 // what is predicted to be in use, as a part
	Samples   int     // for how many samples it has been saturated without a break; at least 1
	Predictor string  // name of what has predicted
}

// Detector finds the bottleneck of a host, from predictions of how much of its resources will be in
// use. It binds late, as Lube does: what has not stayed saturated for some samples is no reason to
// move work. NewDetector makes one, and one goroutine uses it at a time.
type Detector struct {
	hold      int // samples for which a resource must stay saturated; at least 1
	resources [Resources]struct {
		predictor Predictor
		measured  bool    // whether the newest sample has it
		use       float64 // predicted for the next sample
		saturated int     // samples in a row after which the prediction was saturated
	}
}

// NewDetector returns a Detector. predictor is called once for each resource, and must return a new
// predictor. hold is for how many samples a resource must stay saturated before it is a bottleneck;
// up to 1 = it is one at once, so nothing binds late.
func NewDetector(hold int, predictor func() Predictor) *Detector {
	d := &Detector{hold: max(hold, 1)}
	for r := range d.resources {
		d.resources[r].predictor = predictor()
	}
	return d
}

// Add takes the next sample of all resources. A resource that was not measured is not saturated.
func (d *Detector) Add(use Use) {
	for r := range d.resources {
		x := &d.resources[r]
		if x.measured = IsUsable(use[r]); !x.measured {
			x.saturated = 0
			continue
		}
		x.predictor.Add(use[r])
		x.use, _ = x.predictor.Predict(1)
		if levelOf(x.use) < Saturated {
			x.saturated = 0
		} else {
			x.saturated++
		}
	}
}

// Levels returns how close each resource is predicted to be to its limit.
func (d *Detector) Levels() (levels Levels) {
	for r := range d.resources {
		x := &d.resources[r]
		if levels[r] = -1; x.measured {
			levels[r] = levelOf(x.use)
		}
	}
	return levels
}

// Bottleneck returns the resource that is the bottleneck: of those that have stayed saturated for
// long enough, the one of which most is predicted to be in use. found is false if there is none.
func (d *Detector) Bottleneck() (b Bottleneck, found bool) {
	for r := range d.resources {
		x := &d.resources[r]
		if x.saturated >= d.hold && (!found || x.use > b.Use) {
			b = Bottleneck{Resource(r), x.use, x.saturated, x.predictor.Name()}
			found = true
		}
	}
	return b, found
}
