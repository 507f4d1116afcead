package plan

import "github.com/shoal-ml/shoal/state/layout"

// setMemoryStats sets in the stats how many bytes the state has, and how many the hosts hold before
// and after. Build calls it, once the host of each rank is known; it does no I/O.
func (p *Plan) setMemoryStats() {
	s := &p.Stats
	s.Memory, s.Extra = make([]int, len(p.Cluster.Devices)), make([]int, len(p.Cluster.Devices))
	for _, t := range p.Dst.Tensors {
		s.State += t.Shape.Box().Elements() * t.DType.Size()
	}
	add := func(l *layout.Layout, host []int, to ...[]int) {
		bytes := make([]int, len(l.Sets))
		for i := range l.Slots {
			bytes[l.Slots[i].Set] += l.Slots[i].Bytes() * len(l.Slots[i].Names)
		}
		for i, set := range l.Sets {
			for _, r := range set {
				if host[r] != Lost {
					for _, list := range to {
						list[host[r]] += bytes[i]
					}
				}
			}
		}
	}
	add(p.Src, p.Cluster.Old, s.Memory)
	add(p.Dst, p.Host, s.Memory, s.Extra)
}
