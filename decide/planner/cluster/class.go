package cluster

import (
	"fmt"
	"slices"
)

// How a Cluster finds the link between two hosts fast. Parse and WithHosts call classify, before
// others have the cluster; after that nothing changes, so any goroutine may look up links.

// classes tells which link is between two hosts. Hosts of a class are of the same kind and zone, if
// links name that zone. Links that name hosts are looked up by these names.
type classes struct {
	of []int // by host
	// between has by two classes, and within by class, the number of the first link that fits hosts
	// of them by kinds and zones: two hosts, or one; -1 = none.
	between [][]int32
	within  []int32
	named   []bool       // by host: whether links name it
	first   map[ends]int // the number of the first link of those that name hosts
}

// ends is what a link is between: two names in their order, or one twice.
type ends struct {
	inside bool
	a, b   string
}

// newEnds returns what a link between two names is between.
func newEnds(inside bool, a, b string) ends { return ends{inside, min(a, b), max(a, b)} }

// classify sorts hosts into classes, and finds the links of these. It returns what is wrong with
// links, or which hosts have none.
func (c *Cluster) classify() error {
	named, err := c.linkNames()
	if err != nil {
		return err
	}
	sets := c.group(named)
	x := &c.classes
	n := len(sets[""])
	x.within, x.between, x.first = make([]int32, n), make([][]int32, n), map[ends]int{}
	for a := range n {
		x.within[a], x.between[a] = -1, slices.Repeat([]int32{-1}, n)
	}
	seen := map[ends]bool{}
	for i, l := range c.Links {
		left, right := "", "" // any host
		if len(l.Between) == 2 {
			left, right = l.Between[0], l.Between[1]
		}
		key := newEnds(l.Inside, left, right)
		if seen[key] {
			continue // the first one that fits counts
		}
		if seen[key] = true; named[left] || named[right] {
			x.first[key] = i
			continue
		}
		for _, a := range sets[left] {
			if l.Inside {
				setFirst(&x.within[a], i)
				continue
			}
			for _, b := range sets[right] {
				setFirst(&x.between[a][b], i)
				setFirst(&x.between[b][a], i)
			}
		}
	}
	return c.unlinked()
}

// setFirst puts the number of a link into a cell that has none yet, which is below 0.
func setFirst(cell *int32, link int) {
	if *cell < 0 {
		*cell = int32(link)
	}
}

// linkNames returns the names of hosts, kinds and zones that links have, and for each whether it is
// that of a host; or what is wrong with a link.
func (c *Cluster) linkNames() (map[string]bool, error) {
	hosts, others := map[string]bool{}, map[string]bool{}
	for _, h := range c.Hosts {
		hosts[h.Name] = true
		others[h.Zone] = true
	}
	for _, k := range c.Kinds {
		others[k.Name] = true
	}
	named := map[string]bool{}
	for i, l := range c.Links {
		if err := l.validate(); err != nil {
			return nil, fmt.Errorf("link %d%s: %w", i, l.ends(), err)
		}
		for _, name := range l.Between {
			switch {
			case name == "" || !hosts[name] && !others[name]:
				return nil, fmt.Errorf("link %d: there is no host, kind or zone %q%s", i, name,
					meant(name, c.names()))
			case hosts[name] && others[name]:
				return nil, fmt.Errorf("link %d: %q is a host and also a kind or a zone: give it "+
					"another name", i, name)
			case hosts[name] && l.Between[0] == l.Between[1] && !l.Inside:
				return nil, fmt.Errorf("link %d: between %s and itself: a link inside a host has "+
					`"inside": true`, i, name)
			}
			named[name] = hosts[name]
		}
	}
	return named, nil
}

// group gives each host its class, and returns by kind and zone, and "" for any, the classes that a
// link means by it.
func (c *Cluster) group(named map[string]bool) (sets map[string][]int) {
	type key struct{ kind, zone string }
	numbers := map[key]int{}
	sets = map[string][]int{}
	for _, h := range c.Hosts {
		c.classes.named = append(c.classes.named, named[h.Name])
		k := key{kind: h.Kind}
		if _, is := named[h.Zone]; is {
			k.zone = h.Zone
		}
		number, known := numbers[k]
		if !known {
			number = len(numbers)
			numbers[k] = number
			names := []string{"", k.kind, k.zone}
			slices.Sort(names)
			for _, name := range slices.Compact(names) {
				sets[name] = append(sets[name], number)
			}
		}
		c.classes.of = append(c.classes.of, number)
	}
	return sets
}

// unlinked returns which hosts lack a link; nil = none.
func (c *Cluster) unlinked() error {
	all := slices.ContainsFunc(c.Links, func(l Link) bool { return !l.Inside && l.Between == nil })
	for i, h := range c.Hosts {
		if h.Places > 1 && c.number(i, i) < 0 {
			return fmt.Errorf(`no link fits two workers of host %s; one with "inside": true does`,
				h.Name)
		}
		for j := 0; j < i && !all; j++ {
			if c.number(j, i) < 0 {
				return c.noLink(j, i)
			}
		}
	}
	return nil
}

// noLink is the error that the hosts with the numbers a and b, which may be one, have no link.
func (c *Cluster) noLink(a, b int) error {
	return fmt.Errorf("no link fits workers of %s and %s; a last link {\"latency\": …, "+
		"\"rate\": …} fits any two hosts", c.Hosts[a].Name, c.Hosts[b].Name)
}

// ends names for people what a link is between.
func (l Link) ends() string {
	if len(l.Between) < 2 {
		return ""
	}
	return " (" + l.Between[0] + " and " + l.Between[1] + ")"
}

// names lists what a link can be between.
func (c *Cluster) names() (list []string) {
	for _, k := range c.Kinds {
		list = append(list, k.Name)
	}
	for _, h := range c.Hosts {
		list = append(list, h.Name)
		if h.Zone != "" {
			list = append(list, h.Zone)
		}
	}
	slices.Sort(list)
	if list = slices.Compact(list); len(list) > 20 {
		return append(list[:20:20], "…")
	}
	return list
}

// link returns the link between workers of the hosts with the numbers a and b, or of one host where
// they are equal.
func (c *Cluster) link(a, b int) *Link { return &c.Links[c.number(a, b)] }

// number returns the number of the link between workers of the hosts with the numbers a and b, or
// of one host where they are equal; -1 = there is none.
func (c *Cluster) number(a, b int) (number int) {
	x, inside := &c.classes, a == b
	if inside {
		number = int(x.within[x.of[a]])
	} else {
		number = int(x.between[x.of[a]][x.of[b]])
	}
	if !x.named[a] && !x.named[b] {
		return number
	}
	left, right := &c.Hosts[a], &c.Hosts[b]
	for _, one := range [...]string{left.Name, left.Kind, left.Zone} {
		for _, other := range [...]string{right.Name, right.Kind, right.Zone} {
			if i, is := x.first[newEnds(inside, one, other)]; is && (number < 0 || i < number) {
				number = i
			}
		}
	}
	return number
}
