// Package plan turns one layout of the training state into another by moving provably few bytes.
// Build overlays the two layouts box by box, decides which host takes which of the new ranks (a
// linear assignment, so that what can stay stays), and which of the holders sends each byte (a
// minimal busiest sender, by maximum flow); receivers pass bytes on where that relieves the
// holders. A Plan is a value: the same layouts and cluster give the same plan on every host, with
// one hash.
//
// What it promises, each with a certificate that Build checks: no plan crosses the network with
// fewer bytes under any placing of the groups of ranks on the hosts; and for the placing it chose,
// no choice of senders has a less busy busiest host, up to the size of one element per cut.
// docs/design/state.md has the proofs.
package plan

import (
	"fmt"

	"github.com/shoal-ml/shoal/state/layout"
)

// Lost is the host of an old rank whose memory is gone.
const Lost = -1

// A Cluster says where the ranks of the old layout are and where those of the new one may go.
// Its methods read the fields and do no I/O. The plan that Build makes keeps the slices, which must
// not change from then on, so that any goroutine may read them.
type Cluster struct {
	// Devices is the number of new ranks that each host takes; 0 for a host that only sends.
	Devices []int
	// Old is the host of each rank of the old layout, or Lost.
	Old []int
	// New is the group of each rank of the new layout. The ranks of a group go to one host
	// together, so a tensor parallel group stays on fast links. There are at most as many groups as
	// hosts.
	New []int
	// Allowed says for each group which hosts may take it; nil = all of them. What Build promises
	// then holds among the placings that are allowed.
	Allowed [][]bool
	// Fixed keeps group g on host g: for files, and to measure a move without a choice of hosts.
	Fixed bool
	// Fresh gives new ranks new memory: no tensor stays in place, and bytes that an old rank of the
	// host holds are copied from there.
	Fresh bool
}

// UniformCluster returns the cluster in which old ranks, and after the move new ranks, fill hosts
// of so many devices each, one after the other.
func UniformCluster(old, new, devices int) Cluster {
	c := Cluster{Old: make([]int, old), New: make([]int, new)}
	for r := range c.Old {
		c.Old[r] = r / devices
	}
	for r := range c.New {
		c.New[r] = r / devices
	}
	for range (max(old, new) + devices - 1) / devices {
		c.Devices = append(c.Devices, devices)
	}
	return c
}

// A Plan says which bytes go where. Only Build changes it: the exported methods read it and do no
// I/O, so any goroutines may call them at once. Callers must not change its slices.
type Plan struct {
	Src, Dst *layout.Layout
	Cluster  Cluster
	// Host is the host of each new rank, and Device its number among the ranks of that host. The
	// new rank takes over the memory of the old rank with the same number there, counted in the
	// order of ranks.
	Host, Device []int
	Stats        Stats

	classes  []class
	pairs    []pair
	streams  []stream
	oldSets  []layout.Set // sets of the pairs: those of the layout and their unions
	newSets  []layout.Set
	byHost   [][]int // old ranks of each host, ascending
	elements []int   // elements of each slot of Src, without padding
}

// Stats are the figures of a plan, in bytes. Bytes that several ranks of a host need or hold count
// once there.
type Stats struct {
	State int // bytes of the state itself, each element once
	Bytes int // bytes that cross from host to host
	// Bound is the least Bytes of any placement of the groups, from the dual of the assignment;
	// where the cluster is Fixed, Bytes itself.
	Bound int
	// Device is the bytes that ranks receive from the memory of other ranks, on their host or
	// beyond.
	Device  int
	Ingress []int // bytes that each host receives
	Egress  []int // bytes that each host sends
	// Busiest is the largest of Ingress and Egress, and BusiestBound the least possible for this
	// placement.
	Busiest, BusiestBound int
	// Memory is, for each host, what its old and its new ranks hold together, padding included: the
	// peak of a reshape that keeps the old state until the new one is committed. Extra is the new
	// part of it, which includes tensors that stay in place.
	Memory, Extra []int
	// Depth is the largest number of hosts that a byte passes.
	Depth int
}

// Build plans the move from one layout to another. The tensors of dst are among those of src, with
// the same element types and shapes; other tensors of src are dropped. It fails with a *LostError
// when a needed element was on lost ranks only, and with another error when src lacks a tensor of
// dst or has it otherwise, or when c does not fit the layouts. It does no I/O; the plan keeps src,
// dst and what c refers to, which nobody may change then.
func Build(src, dst *layout.Layout, c Cluster) (*Plan, error) {
	if err := c.check(src, dst); err != nil {
		return nil, err
	}
	p := &Plan{Src: src, Dst: dst, Cluster: c, byHost: make([][]int, len(c.Devices))}
	for r, h := range c.Old {
		if h != Lost {
			p.byHost[h] = append(p.byHost[h], r)
		}
	}
	if err := p.findOverlaps(); err != nil {
		return nil, err
	}
	t := p.reduceToHosts(c.New, len(c.groupSizes()))
	if err := t.checkLost(p); err != nil {
		return nil, err
	}
	host := t.placeGroups(c, &p.Stats)
	p.Host = make([]int, dst.Ranks)
	for r, g := range c.New {
		p.Host[r] = host[g]
	}
	p.assignDevices()
	p.routeStreams(t, host)
	p.setMemoryStats()
	p.elements = elementsPerSlot(src)
	return p, nil
}

// check fails for a cluster that does not fit the old and the new layout.
func (c *Cluster) check(src, dst *layout.Layout) error {
	hosts := len(c.Devices)
	if len(c.Old) != src.Ranks || len(c.New) != dst.Ranks {
		return fmt.Errorf("plan: the cluster has %d old and %d new ranks, the layouts %d and %d",
			len(c.Old), len(c.New), src.Ranks, dst.Ranks)
	}
	for r, h := range c.Old {
		if h != Lost && (h < 0 || h >= hosts) {
			return fmt.Errorf("plan: old rank %d is on host %d of %d", r, h, hosts)
		}
	}
	size := c.groupSizes()
	for r, g := range c.New {
		if g < 0 || g >= hosts {
			return fmt.Errorf("plan: new rank %d is in group %d; there are %d hosts for groups", r,
				g, hosts)
		}
	}
	for h, n := range c.Devices {
		if n < 0 {
			return fmt.Errorf("plan: host %d has %d devices", h, n)
		}
		if c.Fixed && h < len(size) && size[h] > n {
			return fmt.Errorf("plan: group %d has %d ranks, its host takes %d", h, size[h], n)
		}
	}
	return c.checkAllowed(size)
}

// checkAllowed fails where the groups, of which size has the numbers of ranks, find no hosts that
// may take them.
func (c *Cluster) checkAllowed(size []int) error {
	if c.Allowed == nil {
		return c.checkGroups(size)
	}
	if len(c.Allowed) != len(size) {
		return fmt.Errorf("plan: %d groups, and it is said of %d which hosts may take them",
			len(size), len(c.Allowed))
	}
	for g, hosts := range c.Allowed {
		if len(hosts) != len(c.Devices) {
			return fmt.Errorf("plan: of %d hosts it is said whether they may take group %d; there "+
				"are %d", len(hosts), g, len(c.Devices))
		}
		if c.Fixed && !hosts[g] {
			return fmt.Errorf("plan: host %d may not take group %d, and has to", g, g)
		}
	}
	return c.checkMatching(size)
}

// groupSizes returns the number of ranks in each group.
func (c *Cluster) groupSizes() (size []int) {
	for _, g := range c.New {
		for g >= len(size) && g < len(c.Devices) {
			size = append(size, 0)
		}
		if g >= 0 && g < len(size) {
			size[g]++
		}
	}
	return size
}
