package planner

import (
	"fmt"
	"math"
	"slices"

	"github.com/shoal-ml/shoal/decide/planner/cluster"
	"github.com/shoal-ml/shoal/decide/planner/deployment"
	"github.com/shoal-ml/shoal/state/layout"
)

// tolerance is by which part a figure of a plan may differ from what is found again.
const tolerance = 1e-6

// Verify judges a deployment again for the model and the machines that it is said to be of, and
// lists in words what of it does not hold; none = all does. It plans anew to look at what is
// proved: the request's batch and workers do not count. It fails where the deployment cannot be
// judged at all.
func Verify(r Request, d *deployment.Deployment) (fails []string, err error) {
	if d.Mesh == "" {
		return nil, fmt.Errorf("the stages of this plan are no mesh, and are not judged")
	}
	mesh, err := layout.ParseMesh(d.Mesh)
	if err != nil {
		return nil, err
	}
	if r.Batch, r.Workers = d.Batch, 0; d.Hosts != nil {
		if r.Cluster, err = inOrder(r.Cluster, d.Hosts); err != nil {
			return nil, err
		}
	}
	judged, err := Judge(r, d.Mesh)
	if err != nil {
		return nil, err
	}
	fails = compareFigures(d, judged.Best)
	proof := judged
	if d.Certificate.Space != judged.Best.Certificate.Space {
		r.Workers = mesh.Ranks()
		if d.Certificate.Space == ownSpace {
			r.Space = SpaceAny
		}
		r.Work = int(math.Round(d.Certificate.Work * Second))
		if proof, err = Solve(r); err != nil {
			return nil, err
		}
	}
	return append(fails, checkProof(d, proof.Best)...), nil
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

// checkProof lists what is wrong with the certificate of a plan, by one that was found anew.
func checkProof(d, again *deployment.Deployment) (fails []string) {
	c := d.Certificate
	switch {
	case c.Bound > again.Predicted.Seconds*(1+tolerance):
		fails = append(fails, fmt.Sprintf("certificate.bound says that no plan takes less than "+
			"%v s, and %s takes %v s", c.Bound, again.Mesh, again.Predicted.Seconds))
	case c.Bound > again.Certificate.Bound*(1+tolerance):
		fails = append(fails, fmt.Sprintf("certificate.bound is %v s, and the proof that is found "+
			"again gives %v s", c.Bound, again.Certificate.Bound))
	}
	if gap := d.Predicted.Seconds/c.Bound - 1; math.Abs(gap-c.Gap) > tolerance {
		fails = append(fails, fmt.Sprintf("certificate.gap is said to be %v, and by the step and "+
			"the bound is %v", c.Gap, gap))
	}
	return fails
}
