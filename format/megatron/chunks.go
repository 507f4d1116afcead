package megatron

// This file finds the layers of pipeline stages, for a writer (layout.go): its goroutine, no I/O.
import "fmt"

// A stage lists the layers of the model that a stage of the pipeline has: equally many in each of
// its chunks, of which there are several with a virtual pipeline.
type stage struct {
	first []int // first layer of each chunk
	each  int   // layers of a chunk
}

// findLayer returns the chunk that has a layer, and its number in it; -1 if the stage lacks it.
func (s *stage) findLayer(layer int) (chunk, number int) {
	for i, first := range s.first {
		if layer >= first && layer < first+s.each {
			return i, layer - first
		}
	}
	return 0, -1
}

// findChunks finds out from the numbers of layers which layers each stage has, and sets stages,
// chunks and layers of the writer: stages have consecutive layers, or, with a virtual pipeline,
// chunks that are distributed round-robin.
func (w *writer) findChunks(layers []map[int]bool) error {
	w.stages, w.chunks = make([]stage, len(layers)), 0
	rows := make([][]int, len(layers)) // of each stage, the layers of its chunks
	for all := w.countLayers(layers); w.layers < all; w.chunks++ {
		for pp := range layers {
			s := &w.stages[pp]
			s.first = append(s.first, w.layers)
			for layers[pp][w.layers] {
				w.layers++
			}
			rows[pp] = append(rows[pp], w.layers-s.first[w.chunks])
		}
		if w.layers == w.stages[0].first[w.chunks] {
			return w.missingLayerError(layers)
		}
	}
	w.chunks = max(w.chunks, 1)
	for pp, row := range rows {
		for _, n := range row {
			if w.stages[pp].each = row[0]; n != row[0] {
				return fmt.Errorf("stage %d of the pipeline has %v layers in its chunks, and "+
					"Megatron gives all chunks of a stage as many; give stages their layers in "+
					"a row, or for a virtual pipeline round and round (--virtual-stages, or "+
					"pp=spread(1,%d,chunks=…) in a layout)", pp, row, w.layers)
			}
		}
	}
	return nil
}

// countLayers returns how many layers the stages have together.
func (w *writer) countLayers(layers []map[int]bool) (n int) {
	for _, stage := range layers {
		n += len(stage)
	}
	return n
}

// missingLayerError is the error where no stage has the next layer: it names a later one, and its
// stage.
func (w *writer) missingLayerError(layers []map[int]bool) error {
	for pp, stage := range layers {
		for n := range stage {
			if n > w.layers {
				return fmt.Errorf("stage %d of the pipeline has layer %d, and no stage has "+
					"layer %d: shoal writes models with all their layers", pp, n, w.layers)
			}
		}
	}
	return fmt.Errorf("two stages of the pipeline have the same layers: each layer is on one stage")
}
