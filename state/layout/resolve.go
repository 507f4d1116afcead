package layout

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
)

// MaxElements bounds the elements of a tensor, and those of all together as they are stored, so
// that sizes in bytes do not overflow.
const MaxElements = 1 << 56

// Resolve returns the layout of a catalogue, which keeps the catalogue. It fails when a tensor has
// an unknown element type or matches no rule, when a dimension does not divide evenly and the rule
// does not say how to divide it, and when an element would lie on no rank. It only reads the Spec.
func (s *Spec) Resolve(tensors []Tensor) (*Layout, error) {
	c, err := s.compile()
	if err != nil {
		return nil, err
	}
	if err := checkCatalogue(tensors); err != nil {
		return nil, err
	}
	all, err := c.storeTensors(tensors)
	if err != nil {
		return nil, err
	}
	r := resolver{compiled: c, sets: sets{index: map[string]int{}}, shapes: map[string]*geometry{},
		byKey: map[string]*group{}, buckets: map[string]*bucket{}}
	r.out = &Layout{Ranks: c.mesh.Ranks(), Tensors: tensors}
	for _, st := range all {
		if err := r.addStored(st); err != nil {
			return nil, fmt.Errorf("layout: tensor %s: %w", st.name, err)
		}
	}
	for _, st := range all {
		if r.buckets[st.name] != nil {
			return nil, fmt.Errorf("layout: a bucket and a tensor are both called %s", st.name)
		}
	}
	names := slices.Sorted(maps.Keys(r.buckets))
	for _, name := range names {
		if err := r.countPieces(r.buckets[name].slotCount(c.mesh)); err != nil {
			return nil, fmt.Errorf("layout: bucket %s: %w", name, err)
		}
	}
	for _, g := range r.groups {
		if err := r.addGroup(g); err != nil {
			return nil, fmt.Errorf("layout: tensor %s: %w", g.members[0].name, err)
		}
	}
	for _, name := range names {
		if err := r.layOutBucket(name, r.buckets[name]); err != nil {
			return nil, fmt.Errorf("layout: bucket %s: %w", name, err)
		}
	}
	r.out.Sets = r.sets.all
	return r.out, nil
}

// A resolver builds a layout. Stored tensors that are placed alike form a group; groups with the
// same cuts of the same shape share their geometry. It does no I/O, and is for the goroutine of one
// call of Resolve.
type resolver struct {
	*compiled
	out     *Layout // the layout so far
	sets    sets
	shapes  map[string]*geometry // by what decides about it: the rule, and the stored shape
	groups  []*group             // groups in the order of their first members
	byKey   map[string]*group    // by what its members have in common
	buckets map[string]*bucket   // by name
	pieces  int                  // number of pieces and slots so far
}

// countPieces adds n to the pieces and slots, and fails for too many, before memory for them is
// allocated.
func (r *resolver) countPieces(n int) error {
	if r.pieces += n; r.pieces > maxTotal {
		return fmt.Errorf("with it the layout has more than %d pieces; a mesh of fewer ranks "+
			"has fewer, and so have rules that cut less", maxTotal)
	}
	return nil
}

// A group is stored tensors that are placed alike.
type group struct {
	geometry *geometry
	place    placement
	allowed  [][]int // by axis, the positions at which the tensors lie; nil = all
	members  []*stored
}

// addStored finds the rule of a stored tensor and adds the tensor to its group or bucket.
func (r *resolver) addStored(s *stored) error {
	i, caught := r.findRule(s.name)
	if i < 0 {
		return fmt.Errorf(`no rule matches; a last rule {match: "**"} would replicate it`)
	}
	rule := &r.rules[i]
	allowed, err := r.allowedPositions(rule, caught)
	if err != nil {
		return err
	}
	if last := rule.place.flatPlacement(); last != nil && last.bucket != "" {
		return r.addToBucket(s, rule.place, allowed)
	}
	shape := strconv.Itoa(i) + " " + s.shapeKey + s.shape.String()
	g := r.shapes[shape]
	if g == nil {
		n, err := rule.place.countPieces(r.mesh, s)
		if err == nil {
			err = r.countPieces(n)
		}
		if err != nil {
			return err
		}
		g = &geometry{}
		r.shapes[shape] = g
	}
	key := fmt.Sprint(shape, s.dtype, allowed)
	if r.byKey[key] == nil {
		r.byKey[key] = &group{geometry: g, place: rule.place, allowed: allowed}
		r.groups = append(r.groups, r.byKey[key])
		if err := r.countPieces(rule.place.slotCount(r.mesh)); err != nil {
			return err
		}
	}
	r.byKey[key].members = append(r.byKey[key].members, s)
	return nil
}

// findRule returns the index of the first rule that matches a name and what its pattern captured,
// -1 if none does.
func (r *resolver) findRule(name string) (int, []string) {
	for i := range r.rules {
		if caught, ok := r.rules[i].match.match(name); ok {
			return i, caught
		}
	}
	return -1, nil
}

// allowedPositions returns for each axis the positions at which a tensor lies; nil means every
// position.
func (r *resolver) allowedPositions(rule *rule, caught []string) ([][]int, error) {
	numbers, err := rule.match.capturedNumbers(caught)
	if err != nil {
		return nil, err
	}
	allowed := make([][]int, len(r.mesh))
	for i := range rule.place {
		s := &rule.place[i]
		if s.kind == at || s.kind == spread {
			if allowed[r.mesh.axisIndex(s.axes[0])],
				err = s.positionsOn(r.mesh, numbers); err != nil {
				return nil, err
			}
		}
	}
	return allowed, nil
}

// addGroup adds the slots and families of a group to the layout.
func (r *resolver) addGroup(g *group) error {
	if g.geometry.grids == nil {
		if err := g.geometry.fillFor(r.mesh, g.place, g.members[0]); err != nil {
			return err
		}
	}
	var names []string
	for _, m := range g.members {
		names = append(names, m.name)
	}
	ids := make([]int, len(g.geometry.shapes))
	for k, shape := range g.geometry.shapes {
		ids[k] = len(r.out.Slots)
		set := r.sets.indexOfPositions(r.mesh,
			g.place.narrowPositions(r.mesh, g.allowed, g.geometry.index[k]))
		r.out.Slots = append(r.out.Slots,
			Slot{Names: names, DType: g.members[0].dtype, Shape: shape, Set: set})
	}
	for p, grid := range g.geometry.grids {
		f := Family{Grid: grid, Slots: ids}
		for _, m := range g.members {
			f.Tensors = append(f.Tensors, m.parts[p])
		}
		r.out.Families = append(r.out.Families, f)
	}
	return nil
}

// A sets holds every distinct set of ranks once. It is for the goroutine of one call of Resolve or
// New.
type sets struct {
	all   []Set
	index map[string]int // index in all, by a key that the caller of setIndex chooses
}

// indexOfPositions returns the index of the set of the ranks at the allowed positions, which it
// adds if necessary.
func (s *sets) indexOfPositions(m Mesh, allowed [][]int) int {
	return s.setIndex(string(appendPositions(nil, allowed)), func() Set {
		return m.ranksAt(allowed)
	})
}

// setIndex returns the index of the set of a key; if there is none, it adds what ranks returns.
func (s *sets) setIndex(key string, ranks func() Set) int {
	i, ok := s.index[key]
	if !ok {
		i = len(s.all)
		s.index[key] = i
		s.all = append(s.all, ranks())
	}
	return i
}

// appendPositions appends positions so that equal texts mean equal positions.
func appendPositions(key []byte, allowed [][]int) []byte {
	for _, places := range allowed {
		for _, p := range places {
			key = append(strconv.AppendInt(key, int64(p), 10), ',')
		}
		key = append(key, ';')
	}
	return key
}

// checkCatalogue fails for tensors without a name of their own, for types that are not known or
// cannot be cut, for shapes with a negative size, and for too many elements.
func checkCatalogue(tensors []Tensor) error {
	seen, all := make(map[string]bool, len(tensors)), 0
	for _, t := range tensors {
		if t.DType.Bits() == 0 {
			return fmt.Errorf(
				"layout: tensor %s: unknown element type %v; a guess would corrupt it", t.Name,
				t.DType)
		}
		if t.DType.Size()*8 != t.DType.Bits() {
			return fmt.Errorf("layout: tensor %s: elements of %v share bytes and cannot be cut; "+
				"store them packed, as u8", t.Name, t.DType)
		}
		n, err := t.Shape.Elements()
		if err != nil || n > MaxElements {
			return fmt.Errorf("layout: tensor %s: shape %v has more elements than anyone can "+
				"hold, or less than none", t.Name, t.Shape)
		}
		if all += n; all > MaxElements {
			return fmt.Errorf("layout: the tensors up to %s have more elements together than "+
				"anyone can hold", t.Name)
		}
		if t.Name == "" || seen[t.Name] {
			return fmt.Errorf("layout: two tensors are called %q, or one has no name", t.Name)
		}
		seen[t.Name] = true
	}
	return nil
}
