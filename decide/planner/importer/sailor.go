package importer

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/shoal-ml/shoal/decide/planner/cluster"
	"github.com/shoal-ml/shoal/decide/planner/model"
	"github.com/shoal-ml/shoal/internal/spelling"
)

const (
	// sailorStates is how many times the bytes of the parameters a rank has between steps: Adam
	// 8 bytes for each 4, parameters, gradients, buffers of communication and a copy 4 each.
	sailorStates = 6
	// sailorReserve is the bytes that kernels and the framework have of a device.
	sailorReserve = 5_060_000_000
	// sailorMost is how many points of a profile are taken at most.
	sailorMost = 1 << 12
	// sailorGap is from which factor on fits of one pair of machines contradict each other.
	sailorGap = 2
)

// SailorFiles is the text of the files of Sailor that say something of models and machines.
type SailorFiles struct {
	Profiles []byte // profiles_tmp.json: seconds by model, device, micro-batch, degree and layer
	Info     []byte // llm_info.json: parameters and activations of layers
	Network  []byte // network_coeffs_all_homo.json: bandwidth between devices of one kind
	Mixed    []byte // multizone_bandwidths_het.json: bandwidth between devices of two kinds
	Config   []byte // basic_cluster_config.json: devices of a host, and their memory
}

// SailorHosts is how many hosts there are of a kind of device.
type SailorHosts struct {
	Kind  string
	Count int
}

// sailorFit is the bandwidth of a link: the three numbers of a parabola, and the highest rate.
type sailorFit struct {
	parabola []float64
	highest  float64
}

// UnmarshalJSON reads [[c2, c1, c0], highest].
func (f *sailorFit) UnmarshalJSON(text []byte) error {
	return json.Unmarshal(text, &[]any{&f.parabola, &f.highest})
}

// part returns the curve of one of so many messages that together have the bandwidth of a fit.
func (f sailorFit) part(messages int) cluster.Curve {
	c := cluster.Curve{Cap: f.highest / float64(messages)}
	for _, x := range f.parabola {
		c.Log2 = append(c.Log2, x/float64(messages))
	}
	return c
}

// sailorFits is fits by the number of devices of a host that send at the same time.
type sailorFits map[string]sailorFit

// sailor is files of Sailor as they are read for one model, by one call of Sailor.
type sailor struct {
	name     string
	profiles map[string]map[string]map[string]map[string]map[string][]float64
	info     map[string]map[string]map[string]sailorLayer
	network  map[string]map[string]sailorFits
	mixed    map[string]map[string]map[string]map[string]map[string]sailorFits
	config   map[string]json.RawMessage
	quirks   []string
}

// sailorLayer is what llm_info.json says of a layer.
type sailorLayer struct {
	Params int64 `json:"params_bytes"`
	Out    int64 `json:"act_output_bytes"`
	Kept   int64 `json:"act_mem_bytes"`
}

// Sailor reads a model of Sailor and machines with so many hosts of each kind.
func Sailor(f SailorFiles, name string, hosts []SailorHosts) (*Imported, error) {
	s := &sailor{name: name}
	for _, x := range []struct {
		what string
		text []byte
		into any
	}{{"profiles", f.Profiles, &s.profiles}, {"llm_info", f.Info, &s.info},
		{"network", f.Network, &s.network}, {"network of two kinds", f.Mixed, &s.mixed},
		{"config", f.Config, &s.config}} {
		if err := json.Unmarshal(x.text, x.into); err != nil {
			return nil, fmt.Errorf("%s: %w", x.what, err)
		}
	}
	m, err := s.model()
	if err != nil {
		return nil, err
	}
	c, err := s.cluster(hosts)
	if err != nil {
		return nil, err
	}
	return &Imported{Model: m, Cluster: c, Quirks: s.quirks}, nil
}

// rule notes for people what was changed or assumed.
func (s *sailor) rule(format string, values ...any) {
	if text := fmt.Sprintf(format, values...); !slices.Contains(s.quirks, text) {
		s.quirks = append(s.quirks, text)
	}
}

// model returns the layers and points of the model.
func (s *sailor) model() (*model.Model, error) {
	info, devices := s.info[s.name], s.profiles[s.name]
	if len(info["1"]) == 0 || len(devices) == 0 {
		known := slices.Sorted(maps.Keys(s.info))
		meant := ""
		if near := spelling.Nearest(s.name, known); near != "" {
			meant = " (did you mean " + near + "?)"
		}
		return nil, fmt.Errorf("there is no model %q with profiles%s; there are %v", s.name, meant,
			known)
	}
	m := &model.Model{Shoal: model.Version, Name: s.name, Source: "Sailor, profiles_tmp.json"}
	for i := range len(info["1"]) {
		id := strconv.Itoa(i)
		whole, is := info["1"][id]
		if !is {
			return nil, fmt.Errorf("layer %s is missing, and there are %d", id, len(info["1"]))
		}
		for degree, layers := range info {
			if x := layers[id]; !amount(float64(x.Params)) || !amount(float64(x.Out)) ||
				!amount(float64(x.Kept)) {
				return nil, fmt.Errorf("layer %s, degree %s: %+v are no bytes from 0 to 2^50", id,
					degree, x)
			}
		}
		l := model.Layer{ID: id, Params: whole.Params, State: sailorStates * whole.Params,
			Out: whole.Out}
		for _, degree := range numbers(info) {
			part, is := info[strconv.Itoa(degree)][id]
			if degree > 1 && is {
				l.Split = append(l.Split, model.Split{TP: degree, Params: part.Params,
					State: sailorStates * part.Params})
			}
		}
		m.Layers = append(m.Layers, l)
	}
	s.rule("a rank has %d times the bytes of its parameters between steps, for Adam", sailorStates)
	for _, device := range slices.Sorted(maps.Keys(devices)) {
		for _, micro := range numbers(devices[device]) {
			degrees := devices[device][strconv.Itoa(micro)]
			for _, degree := range numbers(degrees) {
				p, err := s.point(m, device, micro, degree, degrees[strconv.Itoa(degree)])
				if err != nil {
					return nil, fmt.Errorf("%s, micro-batch %d, degree %d: %w", device, micro,
						degree, err)
				}
				if p != nil {
					m.Points = append(m.Points, *p)
				}
			}
		}
	}
	if len(m.Points) > sailorMost {
		return nil, fmt.Errorf("%d points; up to %d are read", len(m.Points), sailorMost)
	}
	return checked(m)
}

// numbers lists the keys of an object that are numbers above 0, ascending.
func numbers[T any](object map[string]T) (list []int) {
	for key := range object {
		if n, err := strconv.Atoi(key); err == nil && n > 0 && strconv.Itoa(n) == key {
			list = append(list, n)
		}
	}
	slices.Sort(list)
	return list
}

// point returns what was measured on a device with micro-batches of a size and layers shared to a
// degree, by layer; nil = it is of no use, and a rule says why.
func (s *sailor) point(m *model.Model, device string, micro, degree int,
	layers map[string][]float64) (*model.Point, error) {
	info := s.info[s.name][strconv.Itoa(degree)]
	switch {
	case degree&(degree-1) != 0:
		s.rule("points of degree %d on %s are left out: no machine shares layers so", degree,
			device)
		return nil, nil
	case len(info) != len(m.Layers):
		s.rule("points of degree %d on %s are left out: what a rank has of the layers is not said",
			degree, device)
		return nil, nil
	case len(layers) != len(m.Layers):
		s.rule("points of %s are left out: they have %d layers, and the model has %d", device,
			len(layers), len(m.Layers))
		return nil, nil
	}
	p := &model.Point{Device: device, Micro: micro, Layers: map[string]model.Cost{}}
	if degree > 1 {
		p.TP = degree
	}
	for _, l := range m.Layers {
		times, is := layers[l.ID]
		if !is || len(times) != 3 {
			return nil, fmt.Errorf("layer %s has %d times, not those of forward, backward and "+
				"update", l.ID, len(times))
		}
		p.Layers[l.ID] = model.Cost{Forward: times[0], Backward: times[1], Update: times[2],
			Kept: wholeBytes(float64(info[l.ID].Kept) * float64(micro))}
	}
	return p, nil
}

// cluster returns machines.
func (s *sailor) cluster(hosts []SailorHosts) (*cluster.Cluster, error) {
	c := &cluster.Cluster{Shoal: cluster.Version, Transfer: cluster.Blocking}
	s.rule("%d bytes of each device are for kernels and the framework", int64(sailorReserve))
	s.rule("sends are waited for, one at a time, as the program that was measured does")
	for _, h := range hosts {
		var config struct {
			Devices int   `json:"gpus_per_node"`
			Memory  int64 `json:"mem_per_gpu"`
		}
		if err := json.Unmarshal(s.config[h.Kind], &config); err != nil || h.Count < 0 ||
			h.Count > 1<<12 {
			return nil, fmt.Errorf("%d hosts of %s: there are up to 4096 hosts of kinds that the "+
				"config has, %v", h.Count, h.Kind, slices.Sorted(maps.Keys(s.config)))
		}
		c.Kinds = append(c.Kinds, cluster.Kind{Name: h.Kind, Memory: config.Memory,
			Reserve: sailorReserve})
		for i := range h.Count {
			c.Hosts = append(c.Hosts, cluster.Host{Name: fmt.Sprintf("%s-%d", h.Kind, i),
				Kind: h.Kind, Places: config.Devices})
		}
		inside := s.network["intra"][h.Kind]
		if len(numbers(inside)) == 0 {
			return nil, fmt.Errorf("nothing is said of the links inside a host of %s", h.Kind)
		}
		first := inside[strconv.Itoa(numbers(inside)[0])]
		c.Links = append(c.Links, cluster.Link{Between: []string{h.Kind, h.Kind}, Inside: true,
			Curve: first.part(1)})
		for _, other := range hosts {
			if other.Kind > h.Kind {
				continue
			}
			l, err := s.link(h.Kind, other.Kind)
			if err != nil {
				return nil, err
			}
			c.Links = append(c.Links, *l)
		}
	}
	text, err := json.Marshal(c)
	if err != nil {
		return nil, err
	}
	return cluster.Parse(text)
}

// link returns the link between hosts of the kinds a and b, which may be one.
func (s *sailor) link(a, b string) (*cluster.Link, error) {
	fits := s.network["inter"][a]
	if a != b {
		fits = s.slower(s.directed(a, b), s.directed(b, a))
		if len(fits) == 0 { // nobody measured them together
			fits = s.slower(s.network["inter"][a], s.network["inter"][b])
			s.rule("%s and %s send to each other as the slower of both to its own kind", a, b)
		}
	}
	if len(fits) == 0 {
		return nil, fmt.Errorf("nothing is said of the link between %s and %s", a, b)
	}
	// So many messages together had a bandwidth, so that one alone has its part of it at least.
	one, together, messages := fits["1"], sailorFit{}, 1
	for _, n := range numbers(fits) {
		f := fits[strconv.Itoa(n)]
		if f.highest > together.highest {
			together = f
		}
		if part := float64(messages) * f.highest / float64(n); part > sailorGap*one.highest {
			s.rule("fits of %s and %s contradict each other: %d messages together had %.3g times "+
				"the bandwidth of one, which is taken for a part of theirs", a, b, n,
				f.highest/max(fits["1"].highest, 1))
			one, messages = f, n
		}
	}
	shared := together.part(1)
	return &cluster.Link{Between: []string{a, b}, Curve: one.part(messages), Shared: &shared}, nil
}

// directed returns the fits from devices of one kind to those of another, of the first zone that
// has them.
func (s *sailor) directed(from, to string) sailorFits {
	for _, zone := range slices.Sorted(maps.Keys(s.mixed)) {
		all := sailorFits{}
		for n, receivers := range s.mixed[zone][from] {
			if f, is := receivers[zone][to][n]; is {
				all[n] = f
			}
		}
		if len(all) > 0 {
			return all
		}
	}
	return nil
}

// slower returns, of each number of messages that both have, the fit with the lower highest rate.
func (s *sailor) slower(a, b sailorFits) sailorFits {
	all := sailorFits{}
	for n, f := range a {
		g, is := b[n]
		if !is {
			continue
		}
		if all[n] = f; g.highest < f.highest {
			all[n] = g
		}
	}
	return all
}
