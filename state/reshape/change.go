package reshape

import (
	"errors"
	"fmt"
	"slices"

	"github.com/shoal-ml/shoal/state/layout"
	"github.com/shoal-ml/shoal/state/plan"
)

// A Placement is the ranks of the old mesh on the workers of a job.
type Placement struct {
	Hosts []int // number of the host of each worker, from 0
	Ranks []int // worker of each rank of the old mesh; Lost = its memory is gone
	// Kinds are the kinds of the hosts, by number of the host; "" = not known, and nil = none is.
	Kinds []string
	// Leaving are hosts whose workers send what they hold, and take no rank.
	Leaving []int
	// Redundant asks that replicas of the new mesh lie on two hosts, which comes before moving few
	// bytes.
	Redundant bool
}

// Lost is the worker of an old rank whose memory is gone.
const Lost = -1

// A Change is the transition from one mesh to another. After PlanChange nothing changes it but the
// first call of Moves; with that exception any goroutine may call the exported methods. They
// compute and do no I/O.
type Change struct {
	Old, New *Layout    // the state on the two meshes
	Plan     *plan.Plan // which bytes go where
	// Workers is the worker that takes each rank of the new mesh. The plan chooses the worker that
	// holds most of what the rank needs; in a redundant job among the choices that leave least of
	// the state on one host only.
	Workers   []int
	placement Placement // where the workers are and what they hold
	oldHomes  []home    // family of each tensor in the old layout
	newHomes  []home    // family of each tensor in the new layout
	moves     []Move    // nil before Moves is called
}

// PlanChange plans the transition from one mesh to another over the workers of a job. It fails with
// a *plan.LostError when only lost workers had something that is needed, and with a
// *layout.KindError where the new mesh names kinds of hosts that lack workers. It does no I/O; the
// change keeps what it is given, which nobody may change then.
func PlanChange(old, new *Layout, at Placement) (*Change, error) {
	if n := at.availableWorkers(); new.Ranks > n {
		return nil, fmt.Errorf("mesh %s needs %d workers, the job has %d", new.Mesh, new.Ranks, n)
	}
	if err := new.Mesh.CheckKinds(at.CountKinds()); err != nil {
		return nil, err
	}
	if len(at.Ranks) != old.Ranks {
		return nil, fmt.Errorf("mesh %s has %d ranks, of which %d are known", old.Mesh, old.Ranks,
			len(at.Ranks))
	}
	c := &Change{Old: old, New: new, placement: at, oldHomes: findHomes(old.Layout),
		newHomes: findHomes(new.Layout)}
	err := c.buildPlan(at.toCluster(new.Mesh))
	if err == nil && at.Redundant {
		err = c.spreadReplicas()
	}
	if err != nil {
		return nil, err
	}
	return c, c.assignWorkers()
}

// availableWorkers returns the number of workers that may take a rank.
func (p *Placement) availableWorkers() (n int) {
	for _, h := range p.Hosts {
		if !slices.Contains(p.Leaving, h) {
			n++
		}
	}
	return n
}

// kindOf returns the kind of a host; "" = not known.
func (p *Placement) kindOf(host int) string {
	if host < len(p.Kinds) {
		return p.Kinds[host]
	}
	return ""
}

// CountKinds counts the workers that may take a rank, by the kind of their hosts.
func (p *Placement) CountKinds() map[string]int {
	have := map[string]int{}
	for _, h := range p.Hosts {
		if !slices.Contains(p.Leaving, h) {
			have[p.kindOf(h)]++
		}
	}
	return have
}

// FitKinds returns a mesh without the kinds of hosts that it names, if workers lack for them; note
// says that for people, and is empty if the mesh is as it was.
func (p *Placement) FitKinds(mesh string) (fitted, note string) {
	m, err := layout.ParseMesh(mesh)
	if err != nil {
		return mesh, ""
	}
	if err := m.CheckKinds(p.CountKinds()); err != nil {
		return m.OnAnyHost().String(), "ranks can be on any kind of host from now on, since " +
			err.Error()
	}
	return mesh, ""
}

// buildPlan sets the plan of the change, on a cluster of hosts. Like assignWorkers it is for
// PlanChange, before others have the change.
func (c *Change) buildPlan(cluster plan.Cluster) (err error) {
	c.Plan, err = plan.Build(c.Old.Layout, c.New.Layout, cluster)
	return err
}

// toCluster returns the cluster whose hosts have the old ranks, and take the ranks of a mesh in
// groups of neighbours, as many as each host has workers. Where the mesh says on which kinds of
// hosts ranks are, a group is ranks for one kind, as many as a host of this kind has workers.
func (p *Placement) toCluster(mesh layout.Mesh) plan.Cluster {
	var c plan.Cluster
	for _, h := range p.Hosts {
		for h >= len(c.Devices) {
			c.Devices = append(c.Devices, 0)
		}
		if !slices.Contains(p.Leaving, h) {
			c.Devices[h]++
		}
	}
	for _, w := range p.Ranks {
		host := plan.Lost
		if w != Lost {
			host = p.Hosts[w]
		}
		c.Old = append(c.Old, host)
	}
	groups, fills := 0, map[string]*hostFill{} // by kind
	for r := range mesh.Ranks() {
		kind := mesh.KindOf(r)
		f := fills[kind]
		if f == nil {
			f = &hostFill{host: -1}
			fills[kind] = f
		}
		for f.room == 0 {
			f.host++
			if kind == "" || p.kindOf(f.host) == kind {
				f.room, f.group = c.Devices[f.host], groups
			}
		}
		if f.group == groups {
			groups++
			if kind != "" {
				c.Allowed = append(c.Allowed, p.hostsOfKind(kind, len(c.Devices)))
			}
		}
		f.room--
		c.New = append(c.New, f.group)
	}
	return c
}

// A hostFill is the host whose devices ranks of a kind take at present.
type hostFill struct{ host, group, room int }

// hostsOfKind says for each of so many hosts whether it is of a kind.
func (p *Placement) hostsOfKind(kind string, hosts int) []bool {
	list := make([]bool, hosts)
	for h := range list {
		list[h] = p.kindOf(h) == kind
	}
	return list
}

// assignWorkers sets the worker of each new rank. The devices of a host are its old ranks, in their
// order, and then its other workers.
func (c *Change) assignWorkers() error {
	devices, has := make([][]int, len(c.Plan.Cluster.Devices)), map[int]bool{}
	for _, w := range c.placement.Ranks {
		if w != Lost {
			devices[c.placement.Hosts[w]], has[w] = append(devices[c.placement.Hosts[w]], w), true
		}
	}
	for w, h := range c.placement.Hosts {
		if !has[w] {
			devices[h] = append(devices[h], w)
		}
	}
	for r, h := range c.Plan.Host {
		d := c.Plan.Device[r]
		if d >= len(devices[h]) {
			return errors.New("reshape: a rank without a worker")
		}
		c.Workers = append(c.Workers, devices[h][d])
	}
	return nil
}

// A Cost is what a change costs.
type Cost struct {
	plan.Stats
	// Copied is the bytes that the agents copy, inside hosts and between them, replicas included.
	Copied int
}

// Cost returns what the change costs, in bytes.
func (c *Change) Cost() Cost {
	f := Cost{Stats: c.Plan.Stats}
	for r := range c.New.Ranks {
		f.Copied += c.New.Bytes(r)
	}
	return f
}
