package planner

import (
	"fmt"
	"math"
	"slices"

	"github.com/shoal-ml/shoal/decide/planner/cluster"
	"github.com/shoal-ml/shoal/decide/planner/deployment"
	"github.com/shoal-ml/shoal/state/layout"
)

// How a deployment that somebody has kept is judged again, for shoal plan. All of it runs on the
// goroutine that calls Verify, and changes nothing that it is given.

// tolerance is by which part a figure of a plan may differ from what is found again.
const tolerance = 1e-6

// A Verdict is what was found of a deployment that was judged again, in words.
type Verdict struct {
	Fails []string // what of it does not hold; none = all that was looked at does
	// Unproved says that less work was spent on the bound than went into it, and did not prove it;
	// "" = that is not so.
	Unproved string
}

// Verify judges a deployment again for the model and the machines that it is said to be of. It
// plans anew to look at what is proved, with as much work as went into the plan, and no more than
// that of the request, 0 = any: its batch and workers do not count. It fails where the deployment
// cannot be judged at all.
func Verify(r Request, d *deployment.Deployment) (*Verdict, error) {
	if d.Mesh == "" {
		return nil, fmt.Errorf("the stages of this plan are no mesh, and are not judged")
	}
	mesh, err := layout.ParseMesh(d.Mesh)
	if err != nil {
		return nil, err
	}
	most := r.Work
	if r.Batch, r.Workers = d.Batch, 0; d.Hosts != nil {
		if r.Cluster, err = inOrder(r.Cluster, d.Hosts); err != nil {
			return nil, err
		}
	}
	judged, err := Judge(r, d.Mesh)
	if err != nil {
		return nil, err
	}
	v := &Verdict{Fails: compareFigures(d, judged.Best)}
	proof := judged
	if d.Certificate.Space != judged.Best.Certificate.Space {
		r.Workers = mesh.Ranks()
		// What is proved of several kinds of devices is for any number of workers, so the search
		// may have begun with another number.
		if from, err := layout.ParseMesh(d.Certificate.From); err == nil &&
			from.Ranks() == r.Workers {
			r.From = d.Certificate.From
		}
		if d.Certificate.Space == ownSpace {
			r.Space = SpaceAny
		}
		r.Work = int(math.Round(d.Certificate.Work * Second))
		if most > 0 && r.Work > most {
			r.Work = most
			v.Unproved = fmt.Sprintf("the bound of %v s was not proved again: %.3g s of a "+
				"processor went into that, and %.3g s now", d.Certificate.Bound,
				d.Certificate.Work, float64(most)/Second)
		}
		if proof, err = Solve(r); err != nil {
			return nil, err
		}
	}
	v.checkProof(d, proof.Best)
	return v, nil
}

// inOrder returns machines with some hosts before the others, in this order.
func inOrder(c *cluster.Cluster, names []string) (*cluster.Cluster, error) {
	var hosts []cluster.Host
	for _, name := range names {
		i := slices.IndexFunc(c.Hosts, func(h cluster.Host) bool { return h.Name == name })
		if i < 0 || slices.ContainsFunc(hosts, func(h cluster.Host) bool {
			return h.Name == name
		}) {
			return nil, fmt.Errorf("hosts: %q is no host of the cluster, or comes twice", name)
		}
		hosts = append(hosts, c.Hosts[i])
	}
	for _, h := range c.Hosts { // links may name them
		if !slices.Contains(names, h.Name) {
			hosts = append(hosts, h)
		}
	}
	return c.WithHosts(hosts)
}

// compareFigures lists the figures of a plan that are others than the judge finds.
func compareFigures(d, judged *deployment.Deployment) (fails []string) {
	number := func(what string, says, is float64) {
		if math.Abs(says-is) > float64(tolerance*max(math.Abs(says), math.Abs(is))) {
			fails = append(fails, fmt.Sprintf("%s is said to be %v, and is %v", what, says, is))
		}
	}
	a, b := d.Predicted, judged.Predicted
	number("predicted.seconds", a.Seconds, b.Seconds)
	number("predicted.low", a.Low, b.Low)
	number("predicted.high", a.High, b.High)
	number("predicted.bubble", a.Bubble, b.Bubble)
	number("predicted.all_reduce", a.AllReduce, b.AllReduce)
	number("predicted.update", a.Update, b.Update)
	if len(d.Stages) != len(judged.Stages) {
		return append(fails, fmt.Sprintf("it lists %d stages, and its mesh has %d", len(d.Stages),
			len(judged.Stages)))
	}
	for i, s := range d.Stages {
		is := judged.Stages[i]
		number(fmt.Sprintf("stages[%d].first", i), float64(s.First), float64(is.First))
		number(fmt.Sprintf("stages[%d].layers", i), float64(s.Layers), float64(is.Layers))
		number(fmt.Sprintf("stages[%d].busy", i), s.Busy, is.Busy)
		number(fmt.Sprintf("stages[%d].memory", i), float64(s.Memory), float64(is.Memory))
	}
	return fails
}

// checkProof notes what is wrong with the certificate of a plan, by one that was found anew.
func (v *Verdict) checkProof(d, again *deployment.Deployment) {
	c := d.Certificate
	open := v.Unproved
	v.Unproved = ""
	// fail notes a claim that does not hold.
	fail := func(format string, values ...any) {
		v.Fails = append(v.Fails, fmt.Sprintf(format, values...))
	}
	switch {
	case c.Bound > again.Predicted.Seconds*(1+tolerance):
		fail("certificate.bound says that no plan takes less than %v s, and %s takes %v s",
			c.Bound, again.Mesh, again.Predicted.Seconds)
	case c.Bound <= again.Certificate.Bound*(1+tolerance):
	case open != "":
		v.Unproved = fmt.Sprintf("%s, which prove %v s", open, again.Certificate.Bound)
	default:
		fail("certificate.bound is %v s, and the proof that is found again gives %v s", c.Bound,
			again.Certificate.Bound)
	}
	if gap := gapOf(d.Predicted.Seconds, c.Bound); !(math.Abs(gap-c.Gap) <= tolerance) {
		fail("certificate.gap is said to be %v, and by the step and the bound is %v", c.Gap, gap)
	}
}
