package planner

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/shoal-ml/shoal/decide/planner/model"
	"github.com/shoal-ml/shoal/internal/plural"
	"github.com/shoal-ml/shoal/state/layout"
)

// What is said where a batch cannot be divided among the workers: which batches, numbers of workers
// or shares could be. The methods run on the goroutine of the problem, which belongs to one call of
// Solve or Judge, when its search has found nothing.

const (
	// largestBatch is how many samples a step may have.
	largestBatch = 1 << 30
	// mostShared is up to how many replicas an error proposes shares of the batch for.
	mostShared = 64
	// mostDivisions bounds the numbers of stages that are looked at for fewer workers.
	mostDivisions = 1 << 22
)

// unmeasuredError is the error that nothing was measured on the kinds of devices that hosts have.
func (p *problem) unmeasuredError() error {
	var has []string
	for _, place := range p.places {
		has = append(has, place.Kind)
	}
	slices.Sort(has)
	return p.unmeasuredOn(slices.Compact(has))
}

// unmeasuredPointError is the error that layers were not measured on a kind of device with so many
// ranks that share them and micro-batches of so many samples.
func (p *problem) unmeasuredPointError(kind string, tp, micro int) error {
	switch degrees, micros := p.model.Degrees(kind), p.model.Micros(kind, tp); {
	case degrees == nil:
		return p.unmeasuredOn([]string{kind})
	case micros == nil:
		return fmt.Errorf("layers that %d ranks share were not measured on %s (tp=%d); those of "+
			"tp=%v were", tp, kind, tp, degrees)
	default:
		return fmt.Errorf("micro-batches of %d samples were not measured on %s with tp=%d; those "+
			"of %v were", micro, kind, tp, micros)
	}
}

// unmeasuredOn is the error that nothing was measured on these kinds of devices.
func (p *problem) unmeasuredOn(kinds []string) error {
	measured := p.model.Devices()
	return fmt.Errorf("nothing was measured on %s; the model has points of %s: measure it on that "+
		"kind (python3 -m shoal.torch.profile … --device-name %s), or, if this is the same kind, "+
		"call it %s in the cluster, in a job by shoal agent --kind", strings.Join(kinds, ", "),
		strings.Join(measured, ", "), kinds[0], measured[0])
}

// A division is degrees for which there are places, and a micro-batch that was measured on them.
type division struct {
	replicas, stages, tp, sample int
	unlike                       bool // replicas are on different kinds, with shares of the batch
}

// step returns of how many samples a batch must be a multiple, and how many it has at least.
func (d division) step() (step, least int) {
	if d.unlike {
		return d.sample, d.replicas * d.sample
	}
	return d.replicas * d.sample, d.replicas * d.sample
}

// divides reports whether a batch can be divided so.
func (d division) divides(batch int) bool {
	step, least := d.step()
	return batch >= least && batch%step == 0
}

// unitsOf lists by kind of device how many units of tp devices there are, 0 where layers were not
// measured on such, with micro-batches of so many samples.
func (p *problem) unitsOf(tp, sample int) (list []int) {
	for k := range p.kinds {
		list = append(list, 0)
		if p.costs(k, tp, sample) != nil {
			list[k] = len(p.groups(0, k, tp))
		}
	}
	return list
}

// divisions lists what so many workers can be divided into. 0 = all places, or, where these are of
// several kinds, as many stages as there can be, of one replica: those divide most batches, and
// need least memory.
func (p *problem) divisions(workers int) (list []division) {
	if workers == 0 && len(p.kinds) == 1 {
		workers = len(p.places)
	}
	n := len(p.model.Layers)
	for _, point := range p.model.Points {
		d := division{tp: point.Degree(), sample: point.Micro}
		units := p.unitsOf(d.tp, d.sample)
		if workers == 0 {
			for _, count := range units {
				d.stages = min(n, d.stages+count)
			}
			if d.replicas = 1; d.stages > 0 {
				list = append(list, d)
			}
			continue
		}
		for d.stages = 1; d.stages <= n; d.stages++ {
			if workers%(d.stages*d.tp) != 0 {
				continue
			}
			d.replicas = workers / d.stages / d.tp
			stages, replicas := 0, 0 // for which there are places
			kinds := 0               // that have places for a replica
			for _, count := range units {
				stages, replicas = stages+count/d.replicas, replicas+count/d.stages
				if count >= d.stages {
					kinds++
				}
			}
			if d.unlike = false; stages >= d.stages {
				list = append(list, d)
			}
			if d.unlike = true; kinds > 1 && d.replicas > 1 && replicas >= d.replicas {
				list = append(list, d)
			}
		}
	}
	slices.SortStableFunc(list, func(a, b division) int { // points of several kinds are alike
		return cmp.Or(cmp.Compare(a.tp, b.tp), cmp.Compare(a.sample, b.sample),
			cmp.Compare(a.stages, b.stages))
	})
	return slices.Compact(list)
}

// nearest returns the largest batch below that of the problem, 0 = none, and the least above it
// that one of some divisions divides.
func (p *problem) nearest(list []division) (below, above int) {
	above = math.MaxInt
	for _, d := range list {
		step, least := d.step()
		if low := p.batch / step * step; low >= least {
			below = max(below, low)
		}
		above = min(above, max(least, p.batch/step*step+step))
	}
	return below, above
}

// undividedError is the error that the batch cannot be divided among so many workers, and what can
// be.
func (p *problem) undividedError(workers int) error {
	list := p.divisions(workers)
	all := len(p.places)
	if workers > 0 {
		all = workers
	} else if len(p.kinds) == 1 {
		workers = all
	}
	who := plural.Of(all, "worker")
	var micros, degrees []int
	for _, k := range p.kinds {
		for _, tp := range p.model.Degrees(k.Name) {
			degrees = append(degrees, tp)
			micros = append(micros, p.model.Micros(k.Name, tp)...)
		}
	}
	slices.Sort(micros)
	slices.Sort(degrees)
	fewer := ""
	if n := p.fewer(workers); n > 0 {
		fewer = fmt.Sprintf(", or %s (--workers %d)", plural.Of(n, "worker"), n)
	}
	if len(list) == 0 {
		return fmt.Errorf("%s cannot be divided into stages and replicas: there are %s at most, "+
			"one a layer, and %v ranks that share layers must be on one host: take other workers%s",
			who, plural.Of(len(p.model.Layers), "stage"), slices.Compact(degrees), fewer)
	}
	if slices.ContainsFunc(list, func(d division) bool { return d.divides(p.batch) }) {
		return fmt.Errorf("a batch of %d samples is more micro-batches than can be played for %s, "+
			"up to %d on all stages of a replica: take a smaller batch, or measure larger "+
			"micro-batches", p.batch, who, mostMicro)
	}
	return fmt.Errorf("a batch of %d samples cannot be divided among %s with the micro-batches "+
		"that were measured, %v, and %s: take %s%s%s", p.batch, who, slices.Compact(micros),
		plural.Of(len(p.model.Layers), "layer"), batches(p.nearest(list)), p.unequal(list), fewer)
}

// unsharedError is the error that the batch cannot be dealt among the replicas of a mesh that have
// such shares, and what can be.
func (p *problem) unsharedError(c *candidate, shares []int) error {
	step, sum, common := c.sample, 0, 0
	for _, share := range shares {
		sum, common = sum+share, gcd(share, common)
	}
	if slices.Contains(shares, 0) {
		return fmt.Errorf("a replica has no share of the batch: shares of dp are at least 1")
	}
	step *= sum / common
	below := p.batch / step * step
	other := ""
	if total := p.batch / c.sample; p.batch%c.sample == 0 && total >= c.replicas &&
		c.replicas <= mostShared {
		other = fmt.Sprintf(", or give dp other shares, as %v",
			sharedMesh(division{replicas: c.replicas, stages: 1}, total)[:1])
	}
	return fmt.Errorf("a batch of %d samples cannot be divided among %d replicas with "+
		"micro-batches of %d: take %s%s", p.batch, c.replicas, c.sample,
		batches(below, below+step), other)
}

// gcd returns the greatest number that divides both; that of 0 and b is b.
func gcd(a, b int) int {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// batches names the two batches between which one lies, below and above it, of which the first may
// be 0, and the other more than there can be.
func batches(below, above int) string {
	switch {
	case above > largestBatch && below == 0:
		return "another mesh"
	case above > largestBatch:
		return fmt.Sprintf("a batch of %d", below)
	case below == 0:
		return fmt.Sprintf("a batch of %d", above)
	}
	return fmt.Sprintf("a batch of %d or %d", below, above)
}

// fewer returns the largest number of workers below one among which the batch can be divided; 0 =
// there is none, as far as it looks.
func (p *problem) fewer(workers int) int {
	if !slices.ContainsFunc(p.model.Points, func(x model.Point) bool {
		return p.batch%x.Micro == 0
	}) {
		return 0
	}
	tries := mostDivisions / len(p.model.Layers) / len(p.model.Points)
	for n := workers - 1; n > 0 && n >= workers-tries; n-- {
		if slices.ContainsFunc(p.divisions(n), func(d division) bool {
			return d.divides(p.batch)
		}) {
			return n
		}
	}
	return 0
}

// unequal proposes the fastest mesh whose replicas have unequal shares of the batch, with even
// stages; "" = none fits.
func (p *problem) unequal(list []division) string {
	best, mesh := math.Inf(1), ""
	for _, d := range list {
		total := p.batch / d.sample
		if len(p.kinds) > 1 || d.replicas > mostShared || total < d.replicas ||
			p.batch%d.sample != 0 {
			continue
		}
		text := sharedMesh(d, total).String()
		c, err := p.parse(text)
		if err != nil || p.missing(c).bytes > 0 {
			continue
		}
		if s, err := p.play(c); err == nil && s.seconds < best {
			best, mesh = s.seconds, text
		}
	}
	if mesh == "" {
		return ""
	}
	return fmt.Sprintf(", or unequal shares of it (--mesh '%s', %.3g s a step)", mesh, best)
}

// sharedMesh returns a mesh whose replicas have shares of so many micro-batches that differ by one
// at most.
func sharedMesh(d division, total int) layout.Mesh {
	replicas := layout.Axis{Name: "dp", Size: d.replicas}
	for r := range d.replicas {
		share := total / d.replicas
		if r < total%d.replicas {
			share++
		}
		replicas.Shares = append(replicas.Shares, share)
	}
	mesh := layout.Mesh{replicas, {Name: "pp", Size: d.stages, Micro: d.sample}}
	if d.tp > 1 {
		mesh = append(mesh, layout.Axis{Name: "tp", Size: d.tp})
	}
	return mesh
}
