package fabric

import "sync"

// Payloads counts the payloads that a network was given to send and may still read. A Network has
// one for all of its links. The zero value is ready; any goroutine may call its methods.
type Payloads struct {
	mu    sync.Mutex // guards the fields below it; not held while a function is called
	count int        // payloads that may still be read
	asked []func()   // functions to be called when there are none
}

// Unused is Network.Unused: it calls f as soon as no payload is counted, which may be at once.
func (p *Payloads) Unused(f func()) {
	p.mu.Lock()
	p.asked = append(p.asked, f)
	p.mu.Unlock()
	p.add(0)
}

// add changes the number of payloads by n, and where none is left, calls the functions that waited
// for that, on this goroutine.
func (p *Payloads) add(n int) {
	p.mu.Lock()
	p.count += n
	var asked []func()
	if p.count == 0 {
		asked, p.asked = p.asked, nil
	}
	p.mu.Unlock()
	for _, f := range asked {
		f()
	}
}
