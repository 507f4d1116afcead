package zoo

import (
	"fmt"
	"slices"
	"strings"
	"unicode"

	"github.com/shoal-ml/shoal/decide/planner/cluster"
)

// A Device is what a kind of device does at its best.
type Device struct {
	Kind  string  // as a cluster names it
	Flops float64 // floating-point operations a second at its peak, dense, in half precision
	// Efficiency is which part of the peak kernels of a training step reach.
	Efficiency float64
	Bandwidth  float64 // bytes a second of its memory
	// Places are the devices of the largest host, and Inside the link between those; nil where a
	// host has one device.
	Places int
	Inside *cluster.Link
}

// Devices returns what the kinds of devices do that the hosts of a cluster have.
func Devices(c *cluster.Cluster) (list []Device, err error) {
	places := c.Places()
	for _, k := range c.Kinds {
		most, here := 0, 0
		var inside *cluster.Link
		for i, p := range places {
			if here++; i == 0 || p.Host != places[i-1].Host {
				here = 1
			}
			if p.Kind == k.Name && here > most {
				most = here
				if here > 1 {
					inside = c.Link(places[i-1], p)
				}
			}
		}
		if most == 0 {
			continue
		}
		d, err := deviceOf(k)
		if err != nil {
			return nil, err
		}
		d.Places, d.Inside = most, inside
		list = append(list, d)
	}
	return list, nil
}

// known are devices by a word of their names: the peaks that their makers state, and the part of
// it that the kernels of a training step reach. What is published of whole steps has waiting and
// sums between devices in it: 41 to 56 % on an A100 (Korthikanti et al. 2022), where the formulas
// come to their seconds with 60 % of kernels; 38 to 43 % on an H100 (Grattafiori et al. 2024); 31 %
// of one V100 (Shoeybi et al. 2019). Other devices have that of their generation.
var known = []struct {
	word string
	Device
}{
	{"b200", Device{Flops: 2250e12, Efficiency: 0.5, Bandwidth: 8e12}},
	{"h200", Device{Flops: 989e12, Efficiency: 0.5, Bandwidth: 4.8e12}},
	{"gh200", Device{Flops: 989e12, Efficiency: 0.5, Bandwidth: 4e12}},
	{"h100", Device{Flops: 989e12, Efficiency: 0.5, Bandwidth: 3.35e12}},
	{"a100", Device{Flops: 312e12, Efficiency: 0.6, Bandwidth: 1.9e12}},
	{"l40s", Device{Flops: 362e12, Efficiency: 0.5, Bandwidth: 0.864e12}},
	{"a40", Device{Flops: 150e12, Efficiency: 0.6, Bandwidth: 0.696e12}},
	{"l4", Device{Flops: 121e12, Efficiency: 0.5, Bandwidth: 0.3e12}},
	{"a10", Device{Flops: 125e12, Efficiency: 0.6, Bandwidth: 0.6e12}},
	{"a10g", Device{Flops: 70e12, Efficiency: 0.6, Bandwidth: 0.6e12}},
	{"v100", Device{Flops: 125e12, Efficiency: 0.35, Bandwidth: 0.9e12}},
	{"t4", Device{Flops: 65e12, Efficiency: 0.35, Bandwidth: 0.32e12}},
}

// deviceOf returns what a kind of device does: what the cluster states of it, and else what is
// known of the device whose word its name has; of several, the last.
func deviceOf(k cluster.Kind) (Device, error) {
	words := strings.FieldsFunc(strings.ToLower(k.Name), func(r rune) bool {
		return !unicode.IsLetter(r) && !unicode.IsDigit(r)
	})
	d := Device{Efficiency: 0.5}
	for _, one := range known {
		if slices.Contains(words, one.word) {
			d = one.Device
		}
	}
	d.Kind = k.Name
	if k.Flops > 0 {
		d.Flops = k.Flops
	}
	if k.Efficiency > 0 {
		d.Efficiency = k.Efficiency
	}
	if k.Bandwidth > 0 {
		d.Bandwidth = k.Bandwidth
	}
	if d.Flops == 0 || d.Bandwidth == 0 {
		names := make([]string, len(known))
		for i, one := range known {
			names[i] = one.word
		}
		return Device{}, fmt.Errorf("zoo: nothing is known of kind %s; known are %s; for another "+
			`say in the cluster what it does, as {"name": %q, "memory": …, "flops": 3e14, `+
			`"efficiency": 0.5, "bandwidth": 2e12}`, k.Name, strings.Join(names, ", "), k.Name)
	}
	return d, nil
}

// String says how times of the device came about, for people.
func (d Device) String() string {
	return fmt.Sprintf("%.4g TFLOP/s of %s at %.0f %%", d.Flops/1e12, d.Kind, 100*d.Efficiency)
}
