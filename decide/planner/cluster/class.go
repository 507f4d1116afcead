package cluster

import (
	"fmt"
	"slices"
)

// classes tells which link is between two hosts. Hosts of a class have the same links: they are of
// one kind and zone, and no link names them.
type classes struct {
	of      []int   // by host
	between [][]int // by two classes: number of the link between hosts of them; -1 = none
	within  []int   // by class: number of the link inside a host; -1 = none
}

// classify sorts hosts into classes, and finds the link of any two. It returns what is wrong with
// links, or which hosts have none.
func (c *Cluster) classify() error {
	sets, err := c.group()
	if err != nil {
		return err
	}
	n := 0 // classes
	for _, class := range c.classes.of {
		n = max(n, class+1)
	}
	c.classes.within, c.classes.between = make([]int, n), make([][]int, n)
	for a := range n {
		c.classes.within[a], c.classes.between[a] = -1, make([]int, n)
		for b := range n {
			c.classes.between[a][b] = -1
		}
	}
	all := make([]int, n)
	for i := range all {
		all[i] = i
	}
	missing := n * n // pairs of classes that have no link yet
	type ends struct {
		inside bool
		a, b   string
	}
	seen := map[ends]bool{}
	for i, l := range c.Links {
		left, right, between := all, all, ends{inside: l.Inside}
		if len(l.Between) == 2 {
			left, right = sets[l.Between[0]], sets[l.Between[1]]
			between.a, between.b = l.Between[0], l.Between[1]
		}
		if seen[between] {
			continue // the first one that fits counts
		}
		seen[between] = true
		if l.Inside {
			for _, a := range left {
				if c.classes.within[a] < 0 {
					c.classes.within[a] = i
				}
			}
			continue
		}
		for _, a := range left {
			if missing == 0 {
				break
			}
			for _, b := range right {
				for _, cell := range []*int{&c.classes.between[a][b], &c.classes.between[b][a]} {
					if *cell < 0 {
						*cell, missing = i, missing-1
					}
				}
			}
		}
	}
	return c.unlinked()
}

// group gives each host its class, and returns by name the classes that a link means by it.
func (c *Cluster) group() (sets map[string][]int, err error) {
	type key struct{ name, kind, zone string }
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
	numbers := map[key]int{}
	sets = map[string][]int{}
	for _, h := range c.Hosts {
		k := key{"", h.Kind, h.Zone}
		if named[h.Name] {
			k.name = h.Name
		}
		number, known := numbers[k]
		if !known {
			number = len(numbers)
			numbers[k] = number
			for _, name := range slices.Compact([]string{h.Kind, h.Zone}) {
				sets[name] = append(sets[name], number)
			}
			if k.name != "" {
				sets[h.Name] = []int{number}
			}
		}
		c.classes.of = append(c.classes.of, number)
	}
	return sets, nil
}

// unlinked returns which hosts lack a link; nil = none.
func (c *Cluster) unlinked() error {
	first := make([]int, 0, len(c.classes.within)) // by class: the number of its first host
	for i, h := range c.Hosts {
		class := c.classes.of[i]
		if h.Places > 1 && c.classes.within[class] < 0 {
			return fmt.Errorf(`no link fits two workers of host %s; one with "inside": true does`,
				h.Name)
		}
		if class < len(first) { // classes are numbered as they come
			if c.classes.between[class][class] < 0 {
				return c.noLink(first[class], i)
			}
			continue
		}
		for other, j := range first {
			if c.classes.between[class][other] < 0 {
				return c.noLink(j, i)
			}
		}
		first = append(first, i)
	}
	return nil
}

// noLink says that two hosts have no link.
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

// link returns the link between workers of two hosts, or of one host twice.
func (c *Cluster) link(a, b int) *Link {
	number := c.classes.between[c.classes.of[a]][c.classes.of[b]]
	if a == b {
		number = c.classes.within[c.classes.of[a]]
	}
	return &c.Links[number]
}
