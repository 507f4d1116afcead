package layout

import (
	"fmt"
	"strings"
)

// Interleave changes a spec, as Preset writes it, so that layers are distributed round-robin in
// chunks over the stages of the axis pp; each stage has the given number of chunks, and 1 changes
// nothing. That is a virtual pipeline, as in Megatron's interleaved schedule. Nobody else may use
// the spec meanwhile, and after an error it is of no use.
func Interleave(s *Spec, chunks int) error {
	mesh, err := ParseMesh(s.Mesh)
	if err != nil {
		return err
	}
	stages := 1
	if i := mesh.axisIndex("pp"); i >= 0 {
		stages = mesh[i].Size
	}
	if chunks < 1 || stages < 2 && chunks > 1 {
		return fmt.Errorf("layout: %d chunks of layers in each stage, and the mesh %q has %d "+
			"stages: a virtual pipeline is for several (pp=2)", chunks, s.Mesh, stages)
	}
	for i := range s.Rules {
		var places []string
		for _, place := range strings.Split(s.Rules[i].Place, ", ") {
			if stage, ok := strings.CutSuffix(place, ")"); ok &&
				strings.HasPrefix(place, "pp=spread(1,") && chunks > 1 {
				place = fmt.Sprintf("%s,chunks=%d)", stage, chunks*stages)
			}
			places = append(places, place)
		}
		s.Rules[i].Place = strings.Join(places, ", ")
	}
	return s.Validate()
}
