package client

// What goroutines use, Close must not take from under them: a bell's descriptor may be another
// file's soon, and the memory is unmapped.

// use keeps what calls stand on from being closed until done.
func (k *calls) use() error {
	k.life.RLock()
	if k.closed.Load() {
		k.life.RUnlock()
		return ErrClosed
	}
	return nil
}

func (k *calls) done() { k.life.RUnlock() }

// ringOwn wakes whoever waits at this side's bell. A context can ask for it long after the wait,
// when the descriptor is another file's.
func (k *calls) ringOwn() {
	if k.use() == nil {
		k.own.Ring()
		k.done()
	}
}

// stop ends all waits, and returns when nobody uses the bells, the control block and the arena any
// more.
func (k *calls) stop() {
	if k.use() == nil {
		k.mu.Lock()
		k.closed.Store(true)
		k.woken.Broadcast()
		k.mu.Unlock()
		k.own.Ring()
		k.done()
	}
	k.life.Lock()
	defer k.life.Unlock()
}
