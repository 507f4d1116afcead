// Package cluster reads what a planner must know of the machines: hosts with devices of some kinds,
// and the links between them. docs/formats/cluster.md is the format. It is pure.
package cluster

import (
	"fmt"
	"slices"
	"strings"

	"github.com/shoal-ml/shoal/internal/spelling"
	"github.com/shoal-ml/shoal/internal/strict"
)

const (
	// Version stands in every Cluster.
	Version = "cluster/1"
	// MaxBytes bounds what Parse reads.
	MaxBytes = 64 << 20
	// maxHosts and maxPlaces bound the hosts, and the places of all of them.
	maxHosts, maxPlaces = 1 << 12, 1 << 16
)

// A Cluster is machines and links. Nothing changes it after Parse.
type Cluster struct {
	Shoal string `json:"shoal"` // always Version
	Kinds []Kind `json:"kinds"`
	Hosts []Host `json:"hosts"`
	Links []Link `json:"links"`
}

// A Kind is a kind of device.
type Kind struct {
	Name    string `json:"name"`
	Memory  int64  `json:"memory"`            // bytes of one device
	Reserve int64  `json:"reserve,omitempty"` // bytes of it that training does not have
	// Flops are floating-point operations a second at the peak, Efficiency the part of them that
	// training reaches, and Bandwidth bytes a second of the memory: for models by formula. 0 = what
	// is known of a device of this name.
	Flops      float64 `json:"flops,omitempty"`
	Efficiency float64 `json:"efficiency,omitempty"`
	Bandwidth  float64 `json:"bandwidth,omitempty"`
}

// A Host is a machine.
type Host struct {
	Name   string `json:"name"`
	Kind   string `json:"kind"`   // of its devices
	Places int    `json:"places"` // how many workers it takes, with a device each
}

// A Link says how bytes go between two workers. The first link that fits two workers counts.
type Link struct {
	// Between names two hosts; none = any two hosts, or, where Inside is true, any host.
	Between []string `json:"between,omitempty"`
	Inside  bool     `json:"inside,omitempty"` // between workers of one host
	Latency float64  `json:"latency"`          // seconds until the first byte is there
	Rate    float64  `json:"rate"`             // bytes a second
	// Measured says whether a running job has shown the rate, or it is assumed; nil = nobody says.
	Measured *bool `json:"measured,omitempty"`
}

// Seconds returns how long so many bytes take over the link.
func (l Link) Seconds(bytes int64) float64 { return l.Latency + float64(bytes)/l.Rate }

// Parse reads a cluster. An error says what is wrong, with the kind, the host or the link.
func Parse(text []byte) (*Cluster, error) {
	if len(text) > MaxBytes {
		return nil, fmt.Errorf("cluster: %d bytes; it takes up to %d", len(text), MaxBytes)
	}
	var c Cluster
	if err := strict.JSON(text, &c); err != nil {
		return nil, fmt.Errorf("cluster: %w", err)
	}
	if err := c.validate(); err != nil {
		return nil, fmt.Errorf("cluster: %w", err)
	}
	return &c, nil
}

// validate returns what is wrong with a cluster; nil = nothing.
func (c *Cluster) validate() error {
	if c.Shoal != Version {
		return fmt.Errorf("the field shoal is %q, not %q: this is no cluster, or one of another "+
			"version", c.Shoal, Version)
	}
	var kinds, hosts []string
	for _, k := range c.Kinds {
		switch {
		case k.Name == "" || slices.Contains(kinds, k.Name):
			return fmt.Errorf("a kind %q has no name, or comes twice", k.Name)
		case k.Memory <= 0 || k.Reserve < 0 || k.Reserve >= k.Memory:
			return fmt.Errorf("kind %s: %d bytes of memory, of which %d are reserved", k.Name,
				k.Memory, k.Reserve)
		case !(k.Flops >= 0 && k.Flops <= 1e20 && k.Bandwidth >= 0 && k.Bandwidth <= 1e18 &&
			k.Efficiency >= 0 && k.Efficiency <= 1):
			return fmt.Errorf("kind %s: %v flops, of which a part of %v is reached, and a "+
				"bandwidth of %v bytes a second", k.Name, k.Flops, k.Efficiency, k.Bandwidth)
		}
		kinds = append(kinds, k.Name)
	}
	places := 0
	for _, h := range c.Hosts {
		switch {
		case h.Name == "" || slices.Contains(hosts, h.Name):
			return fmt.Errorf("a host %q has no name, or comes twice", h.Name)
		case !slices.Contains(kinds, h.Kind):
			return fmt.Errorf("host %s: there is no kind %q%s", h.Name, h.Kind,
				meant(h.Kind, kinds))
		case h.Places < 1 || h.Places > maxPlaces:
			return fmt.Errorf("host %s has %d places; it has from 1 to %d", h.Name, h.Places,
				maxPlaces)
		}
		places += h.Places
		hosts = append(hosts, h.Name)
	}
	if len(hosts) == 0 || len(hosts) > maxHosts || places > maxPlaces {
		return fmt.Errorf("%d hosts with %d places; there are from 1 to %d hosts, with up to %d "+
			"places", len(hosts), places, maxHosts, maxPlaces)
	}
	for i, l := range c.Links {
		if err := l.validate(hosts); err != nil {
			return fmt.Errorf("link %d: %w", i, err)
		}
	}
	for i, a := range c.Hosts {
		for j, b := range c.Hosts[:i+1] {
			if (i != j || a.Places > 1) && c.link(a.Name, b.Name) == nil {
				return fmt.Errorf("no link fits workers of %s and %s; a last link "+
					`{"latency": …, "rate": …} fits any two hosts, one with "inside": true `+
					"workers of one host", a.Name, b.Name)
			}
		}
	}
	return nil
}

// validate returns what is wrong with a link between hosts of these names; nil = nothing.
func (l Link) validate(hosts []string) error {
	switch {
	case len(l.Between) != 0 && len(l.Between) != 2:
		return fmt.Errorf("between has %d names; it has two hosts, or none", len(l.Between))
	case !(l.Latency >= 0 && l.Latency <= 1e6):
		return fmt.Errorf("a latency of %v seconds", l.Latency)
	case !(l.Rate > 0 && l.Rate <= 1e18):
		return fmt.Errorf("a rate of %v bytes a second", l.Rate)
	}
	for _, name := range l.Between {
		if !slices.Contains(hosts, name) {
			return fmt.Errorf("there is no host %q%s", name, meant(name, hosts))
		}
	}
	if len(l.Between) == 2 && (l.Between[0] == l.Between[1]) != l.Inside {
		return fmt.Errorf("between %s: a link inside a host names it twice, and is inside",
			strings.Join(l.Between, " and "))
	}
	return nil
}

// meant returns a known name that somebody may have meant, as a question; "" where none is near.
func meant(word string, known []string) string {
	if near := spelling.Nearest(word, known); near != "" {
		return " (did you mean " + near + "?)"
	}
	return "; there are " + strings.Join(known, ", ")
}

// link returns the link between workers of two hosts, or of one host twice; nil = there is none.
func (c *Cluster) link(a, b string) *Link {
	for i := range c.Links {
		l := &c.Links[i]
		if l.Inside != (a == b) {
			continue
		}
		if len(l.Between) == 0 || l.Between[0] == a && l.Between[1] == b ||
			l.Between[0] == b && l.Between[1] == a {
			return l
		}
	}
	return nil
}

// A Place is where a worker can be.
type Place struct{ Host, Kind string }

// Places lists the places of all hosts, those of a host one after the other.
func (c *Cluster) Places() (list []Place) {
	for _, h := range c.Hosts {
		for range h.Places {
			list = append(list, Place{h.Name, h.Kind})
		}
	}
	return list
}

// Link returns the link between workers at two places.
func (c *Cluster) Link(a, b Place) Link { return *c.link(a.Host, b.Host) }

// Kind returns the kind of device of a name, which there must be.
func (c *Cluster) Kind(name string) Kind {
	return c.Kinds[slices.IndexFunc(c.Kinds, func(k Kind) bool { return k.Name == name })]
}
