// Package cluster reads what a planner must know of the machines: hosts with devices of some kinds,
// and the links between them. docs/formats/cluster.md is the format. It is pure.
package cluster

import (
	"fmt"
	"slices"
	"strings"
	"unicode"

	"github.com/shoal-ml/shoal/internal/spelling"
	"github.com/shoal-ml/shoal/internal/strict"
	"github.com/shoal-ml/shoal/topo"
)

const (
	// Version stands in every Cluster.
	Version = "cluster/1"
	// MaxBytes bounds what Parse reads.
	MaxBytes = 64 << 20
	// maxHosts, maxPlaces, maxKinds and maxLinks bound the hosts, the places of all of them, the
	// kinds of devices, and the links.
	maxHosts, maxPlaces, maxKinds, maxLinks = 1 << 12, 1 << 16, 1 << 8, 1 << 20
)

// How transfers between pipeline stages go.
const (
	// Overlapped transfers go while both ends compute: a send is not waited for.
	Overlapped = "overlapped"
	// Exchange keeps both ends from computing, but what goes down and what goes up at the same time
	// takes as long as the longer of the two.
	Exchange = "exchange"
	// Blocking keeps both ends from computing, and an end makes one transfer at a time.
	Blocking = "blocking"
)

// A Cluster is machines and links. Nothing changes it after Parse, so any goroutine may use it.
type Cluster struct {
	Shoal string `json:"shoal"` // always Version
	// Transfer is Overlapped, Exchange or Blocking; "" = Overlapped.
	Transfer string `json:"transfer,omitempty"`
	Kinds    []Kind `json:"kinds"`
	Hosts    []Host `json:"hosts"`
	Links    []Link `json:"links"`

	classes classes
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
	Kind   string `json:"kind"`           // of its devices
	Places int    `json:"places"`         // how many workers it takes, with a device each
	Zone   string `json:"zone,omitempty"` // where it stands, such as a data centre
}

// A Link says how bytes go between two workers. The first link that fits two workers counts.
type Link struct {
	// Between has two names of hosts, kinds of devices or zones, in any order; none = any two
	// hosts, or, where Inside is true, any host.
	Between []string `json:"between,omitempty"`
	Inside  bool     `json:"inside,omitempty"` // between workers of one host
	Curve            // of one message
	// Shared is the curve of all messages together that workers of one host send over such links
	// at the same time, as over one network card; nil = each is as fast as alone.
	Shared *Curve `json:"shared,omitempty"`
	// HalfDuplex says that a link carries one direction at a time.
	HalfDuplex bool `json:"half_duplex,omitempty"`
	// Measured says whether a running job has shown the rate, or it is assumed; nil = nobody says.
	Measured *bool `json:"measured,omitempty"`
}

// SecondsTogether returns how long it takes when workers of one host send so many messages of so
// many bytes at the same time.
func (l Link) SecondsTogether(bytes float64, messages int) float64 {
	seconds := l.SecondsOf(bytes)
	if l.Shared != nil && messages > 1 {
		seconds = max(seconds, l.Shared.SecondsOf(bytes*float64(messages)))
	}
	return seconds
}

// BusyTogether returns for how much of SecondsTogether the link, or what the messages share, is
// busy with them: without the latencies, in which the next ones can go.
func (l Link) BusyTogether(bytes float64, messages int) float64 {
	busy := l.SecondsOf(bytes) - l.Latency
	if l.Shared != nil && messages > 1 {
		busy = max(busy, l.Shared.SecondsOf(bytes*float64(messages))-l.Shared.Latency)
	}
	return busy
}

// Parse reads a cluster. An error says what is wrong, with the kind, the host or the link.
func Parse(text []byte) (*Cluster, error) {
	if len(text) > MaxBytes {
		return nil, fmt.Errorf("cluster: %d bytes; it takes up to %d", len(text), MaxBytes)
	}
	var c Cluster
	if err := strict.Document(text, Version, &c); err != nil {
		return nil, fmt.Errorf("cluster: %w", err)
	}
	if err := c.validate(); err != nil {
		return nil, fmt.Errorf("cluster: %w", err)
	}
	return &c, nil
}

// validate returns what is wrong with a cluster; nil = nothing.
func (c *Cluster) validate() error {
	transfers := []string{Overlapped, Exchange, Blocking}
	if c.Transfer != "" && !slices.Contains(transfers, c.Transfer) {
		return fmt.Errorf("there is no transfer %q%s", c.Transfer, meant(c.Transfer, transfers))
	}
	kinds, hosts := make([]string, 0, len(c.Kinds)), map[string]bool{}
	for _, k := range c.Kinds {
		switch {
		case topo.CheckKind(k.Name) != nil: // it stands in the text of a mesh
			return topo.CheckKind(k.Name)
		case slices.Contains(kinds, k.Name):
			return fmt.Errorf("kind %s comes twice", k.Name)
		case k.Memory <= 0 || k.Reserve < 0 || k.Reserve >= k.Memory:
			return fmt.Errorf("kind %s: %d bytes of memory, of which %d are reserved", k.Name,
				k.Memory, k.Reserve)
		case !(k.Flops >= 0 && k.Flops <= 1e20 && k.Bandwidth >= 0 && k.Bandwidth <= 1e18 &&
			k.Efficiency >= 0 && k.Efficiency <= 1):
			return fmt.Errorf("kind %s: %v flops, of which a part of %v is reached, and a "+
				"bandwidth of %v bytes a second", k.Name, k.Flops, k.Efficiency, k.Bandwidth)
		}
		if kinds = append(kinds, k.Name); len(kinds) > maxKinds {
			return fmt.Errorf("more than %d kinds", maxKinds)
		}
	}
	places := 0
	for _, h := range c.Hosts {
		switch {
		case h.Name == "" || hosts[h.Name]:
			return fmt.Errorf("a host %q has no name, or comes twice", h.Name)
		case strings.ContainsFunc(h.Name, func(r rune) bool { return !unicode.IsPrint(r) }):
			return fmt.Errorf("host %q has letters in its name that cannot be shown", h.Name)
		case !slices.Contains(kinds, h.Kind):
			return fmt.Errorf("host %s: there is no kind %q%s", h.Name, h.Kind,
				meant(h.Kind, kinds))
		case h.Places < 1 || h.Places > maxPlaces:
			return fmt.Errorf("host %s has %d places; it has from 1 to %d", h.Name, h.Places,
				maxPlaces)
		}
		places += h.Places
		hosts[h.Name] = true
	}
	if len(hosts) == 0 || len(hosts) > maxHosts || places > maxPlaces {
		return fmt.Errorf("%d hosts with %d places; there are from 1 to %d hosts, with up to %d "+
			"places", len(hosts), places, maxHosts, maxPlaces)
	}
	if len(c.Links) > maxLinks {
		return fmt.Errorf("%d links; there are up to %d", len(c.Links), maxLinks)
	}
	return c.classify()
}

// validate returns what is wrong with what a link says of itself; nil = nothing.
func (l Link) validate() error {
	if len(l.Between) != 0 && len(l.Between) != 2 {
		return fmt.Errorf("between has %d names; it has two of hosts, kinds or zones, or none",
			len(l.Between))
	}
	if l.Inside && len(l.Between) == 2 && l.Between[0] != l.Between[1] {
		return fmt.Errorf("between %s: a link inside a host names one host or kind twice",
			strings.Join(l.Between, " and "))
	}
	if err := l.Curve.validate(); err != nil {
		return err
	}
	if l.Shared != nil {
		if err := l.Shared.validate(); err != nil {
			return fmt.Errorf("shared: %w", err)
		}
	}
	return nil
}

// meant asks whether one of the known names was meant, or says what there is where none is near.
func meant(word string, known []string) string {
	if near := spelling.Meant(word, known); near != "" {
		return near
	}
	return "; there are " + strings.Join(known, ", ")
}

// WithHosts returns the same machines with other hosts, such as those of c in another order. It
// fails where c is none with them.
func (c *Cluster) WithHosts(hosts []Host) (*Cluster, error) {
	other := *c
	other.Hosts, other.classes = hosts, classes{}
	return &other, other.validate()
}

// A Place is where a worker can be.
type Place struct {
	Host, Kind string
	host       int // its number in Hosts
}

// Places lists the places of all hosts, those of a host one after the other.
func (c *Cluster) Places() (list []Place) {
	for i, h := range c.Hosts {
		for range h.Places {
			list = append(list, Place{h.Name, h.Kind, i})
		}
	}
	return list
}

// Link returns the link between workers at two places, which Places has listed.
func (c *Cluster) Link(a, b Place) *Link { return c.link(a.host, b.host) }

// Kind returns the kind of device of a name, which there must be.
func (c *Cluster) Kind(name string) Kind {
	return c.Kinds[slices.IndexFunc(c.Kinds, func(k Kind) bool { return k.Name == name })]
}
